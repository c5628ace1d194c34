"""A session of impctl's own beside one that the surrounding program has opened.

Law: the program's session stays as it was: its settings, its views, its place as the active
session of the thread; it is never stopped. Queries run in a session that shares its cluster only,
with the settings that decide what a query means set as everywhere; where one cannot be set, the
error names it.
Out of scope: launching Spark where none runs (`spark.session`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from impctl.errors import UsageError
from impctl.spark.session import DEFAULTS, QUERY_LOGGERS, adopt, refuse_changed_meaning

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ZONE = "spark.sql.session.timeZone"


def running_session() -> SparkSession | None:
    """The session that is active in this thread, else the process's; None where Spark is not up."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        found = SparkSession.active()
    except PySparkRuntimeError:
        return None
    refuse_connect(found)
    return found


def refuse_connect(session: object) -> None:
    """UsageError for a session of Spark Connect, and for what is no session."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(session).__mro__}
    if "pyspark.sql.connect.session.SparkSession" in kinds:
        raise UsageError(
            "Sessions of Spark Connect are not supported",
            code="spark_connect_unsupported",
            hint="give a session that runs in this process, on `local[*]` or a cluster master",
        )
    if "pyspark.sql.session.SparkSession" not in kinds:
        raise UsageError(
            f"`spark` must be a SparkSession, not {type(session).__name__}",
            hint="give `SparkSession.active()`, or leave it out",
        )


def session_beside(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """A new session on the same cluster, with `conf` as far as a running one can take it.

    Raises UsageError for a setting that changes what a query means and cannot be set here.
    """
    refuse_changed_meaning(conf)
    return adopt(session.newSession(), {_ZONE: DEFAULTS[_ZONE], **conf})


@contextmanager
def guest() -> Iterator[None]:
    """Leaves the active session, and what Spark's Python side logs of queries, as they were.

    Making a frame of rows activates the session it is made in, and Spark repeats every failed
    query as JSON on stderr, which is reported once as an error.
    """
    before = running_session()
    loggers = _query_loggers()
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if before is not None and running_session() is not before:
            before.createDataFrame([], "nothing int")


def _query_loggers() -> list[logging.Logger]:
    if "pyspark.sql" not in sys.modules:
        return []
    from pyspark.logger import PySparkLogger

    return [PySparkLogger.getLogger(name) for name in QUERY_LOGGERS]

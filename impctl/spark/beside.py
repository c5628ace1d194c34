"""A session of impctl's own beside one that the surrounding program has opened.

Law: the program's session stays as it was: its settings, its views, its place as the active
session of the thread; it is never stopped. Queries run in a session that shares its cluster only,
with the settings that decide what a query means set as everywhere; where one cannot be set, the
error names it. A session of Spark Connect that has all these settings already is worked in itself,
because its frames can be joined with no other's; for the time of a query the number of parts of a
shuffle is set in it.
Out of scope: launching Spark where none runs (`spark.session`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from impctl.errors import UsageError
from impctl.spark.connect import another, home_of, is_connect, is_stopped
from impctl.spark.session import (
    DEFAULTS,
    QUERY_LOGGERS,
    adopt,
    fits,
    refuse_changed_meaning,
    require_release,
)

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
        result = SparkSession.active()
    except (PySparkRuntimeError, ImportError):
        return None
    return None if is_connect(result) and is_stopped(result) else result


def is_usable(session: SparkSession) -> bool:
    """Whether the session given can still be worked in."""
    if is_connect(session):
        return not is_stopped(session)
    running = running_session()
    return running is not None and home_of(running) is home_of(session)


def require_session(session: object) -> None:
    """UsageError for what is no session."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(session).__mro__}
    if not is_connect(session) and "pyspark.sql.session.SparkSession" not in kinds:
        raise UsageError(
            f"`spark` must be a SparkSession, not {type(session).__name__}",
            hint="pass `SparkSession.active()`, or omit it",
        )


def session_beside(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """A new session on the same cluster, with `conf` as far as a running one can take it.

    Raises UsageError for a setting that changes what a query means and cannot be set here.
    """
    require_release(session.version)
    refuse_changed_meaning(conf)
    wanted = {_ZONE: DEFAULTS[_ZONE], **conf}
    if is_connect(session) and fits(session, wanted):
        # Frames of two sessions of Spark Connect cannot be joined, so not one more than needed.
        return session
    beside = another(session) if is_connect(session) else session.newSession()
    return adopt(beside, wanted)


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
        is_moved = before is not None and not is_connect(before)
        if before is not None and is_moved and running_session() is not before:
            before.createDataFrame([], "nothing int")


def _query_loggers() -> list[logging.Logger]:
    if "pyspark.sql" not in sys.modules:
        return []
    from pyspark.logger import PySparkLogger

    return [PySparkLogger.getLogger(name) for name in QUERY_LOGGERS]

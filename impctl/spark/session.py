"""Opening the one Spark session a run works with.

Law: settings that decide what a query means (ANSI rules, case, time zone, what a missing file is)
are the same in every impctl session; a workload that sets them otherwise is refused, because the
engine computes by the same rules. What the installation sets of them otherwise is set right.
Nothing Spark logs reaches the user unless `log_level` asks.
Out of scope: starting the JVM (`spark.launch`), running SQL (`spark.run`).
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from impctl.errors import UsageError
from impctl.spark.connect import is_address, open_remote
from impctl.spark.launch import launch
from impctl.store.scratch import SPARK_SCRATCH, scratch_folder
from impctl.unneeded import show_pandas
from impctl.values import dataclass

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS = {
    "spark.app.name": "impctl",
    # Few files per task: a shuffle of many small tasks else makes a file for each part of each.
    "spark.shuffle.sort.bypassMergeThreshold": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""What a workload may change; the time zone is UTC so that a run means the same on any machine."""

FIXED = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.relationPrecedence": "false",
    "spark.sql.caseSensitive": "false",
    # What a text itself says (MAX RECURSION LEVEL) goes before the first.
    "spark.sql.cteRecursionLevelLimit": "100",
    "spark.sql.cteRecursionRowLimit": "1000000",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.groupByAliases": "true",
    "spark.sql.groupByOrdinal": "true",
    # The engine averages short decimals as an optimizer rule has Spark do it.
    "spark.sql.optimizer.excludedRules": "",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96TimestampConversion": "false",
    # It tells -0.0 from 0.0.
    "spark.sql.parquet.recordLevelFilter.enabled": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.variable.substitute": "false",
}
"""What the meaning of a query rests on, and silent loss of rows; never changed."""

QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

_LEGACY = "spark.sql.legacy."

OLDEST = (4, 1)
"""The first release that the engine's semantics were compared with (decision 0058)."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs (a master, or an address of Spark Connect) and how it is configured.

    `log_level` is Spark's (off, error, warn, ...); a server elsewhere has its own log.
    """

    master: str
    conf: Mapping[str, str] = field(default_factory=dict)
    log_level: str = "off"


def open_session(settings: SparkSettings) -> SparkSession:
    """The session for these settings; one that is already open in this process is used again.

    Raises UsageError for settings that would change what queries mean, for a Spark that is too old,
    and where no Java is found.
    """
    conf = {**DEFAULTS, **settings.conf, **FIXED}
    refuse_changed_meaning(settings.conf)
    show_pandas()  # which the client of Spark Connect needs, and Spark's Python side may use
    if is_address(settings.master):
        return adopt(open_remote(settings.master), conf)
    from pyspark.sql import SparkSession

    _quiet_query_loggers()
    active = SparkSession.getActiveSession()
    if active is not None:
        return adopt(active, conf)
    import pyspark

    require_release(pyspark.__version__)
    with scratch_folder(SPARK_SCRATCH) as folder:
        session = launch(settings.master, conf, settings.log_level, folder)
    try:
        # What the environment tells spark-submit would come first otherwise.
        return adopt(session, conf)
    except UsageError:
        session.stop()
        raise


def adopt(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """An open session with the settings that can still be changed, `spark.sql.legacy.*` unset.

    Raises UsageError for a setting that changes what a query means and cannot be set here.
    """
    require_release(session.version)
    # The installation's settings come along; without a value of its own, Spark's default holds.
    for name in [name for name in session.conf.getAll if name.startswith(_LEGACY)]:
        _ensure(session, name, None)
    for name, value in conf.items():
        if name not in FIXED and session.conf.isModifiable(name):
            session.conf.set(name, value)
    with warnings.catch_warnings():
        # A server warns of settings that are about to go, whatever they are set to.
        warnings.simplefilter("ignore", UserWarning)
        for name, value in FIXED.items():
            _ensure(session, name, value)
    return session


def require_release(version: str) -> None:
    """UsageError for a Spark, here or on a server, that is older than those impctl was tried on."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(
            f"This is Spark {version}, but impctl needs {oldest} or newer",
            code="spark_too_old",
            hint=f"run `pip install 'pyspark>={oldest},<5'`, or connect to a server of that "
            "release; commands that do not need Spark work as before",
        )


def fits(session: SparkSession, conf: Mapping[str, str]) -> bool:
    """Whether the session has these settings already, and all that decide what a query means."""
    if any(name.startswith(_LEGACY) for name in session.conf.getAll):
        return False
    return all(
        str(session.conf.get(name, None) or "").lower() == value.lower()
        for name, value in {**conf, **FIXED}.items()
    )


def refuse_changed_meaning(conf: Mapping[str, str]) -> None:
    """UsageError for settings asked for that would change what a query means."""
    for name in conf:
        if name.startswith(_LEGACY):
            raise UsageError(
                f"Setting `{name}` may change the result of a query",
                code="spark_setting_refused",
                hint="remove it from `spark.conf`; impctl follows Spark's default rules",
            )
    for name, fixed in FIXED.items():
        if name in conf and str(conf[name]).lower() != fixed.lower():
            raise UsageError(
                f"Setting `{name}` must be {fixed}",
                code="spark_setting_refused",
                hint="remove it from `spark.conf`; impctl follows Spark's default rules",
            )


def _quiet_query_loggers() -> None:
    """Spark's Python side repeats every failed query as JSON on stderr; impctl reports it once."""
    from pyspark.logger import PySparkLogger

    for name in QUERY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def _ensure(session: SparkSession, name: str, value: str | None) -> None:
    """The setting as it must be, unset where `value` is None; UsageError where it cannot be."""
    if session.conf.isModifiable(name):
        if value is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, value)
        return
    result = session.conf.get(name, None)
    if value is None or str(result).lower() != value.lower():
        wanted = "unset" if value is None else value
        raise UsageError(
            f"Setting `{name}` of the running Spark must be {wanted}: {result}",
            code="spark_setting_refused",
            hint="start Spark without this setting (program, spark-defaults.conf, "
            "PYSPARK_SUBMIT_ARGS); it changes the result of queries",
        )

"""Opening and closing the one Spark session a run works with.

Law: settings that decide what a query means (ANSI rules, case, time zone, what a missing file is)
are the same in every impctl session; a workload that sets them otherwise is refused, because the
engine computes by the same rules. Nothing Spark logs reaches the user unless `log_level` asks.
Out of scope: finding Java (`spark.java`), running SQL (`spark.run`).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from impctl.errors import UsageError
from impctl.spark.java import find_java, write_launcher
from impctl.store.scratch import SPARK_SCRATCH, scratch_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS = {
    "spark.app.name": "impctl",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""What a workload may change; the time zone is UTC so that a run means the same on any machine."""

FIXED = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.groupByAliases": "true",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
"""What the meaning of a query rests on, and silent loss of rows; never changed."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG_CONFIGURATION = "log4j2.configurationFile"
_LOGGING = """\
status = off
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark %p %c{{1}}: %m%n%ex
# Without a level of its own here Spark raises the root to WARN and says so.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
"""
QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs and how it is configured; `log_level` is Spark's (off, error, warn, ...)."""

    master: str
    conf: Mapping[str, str] = field(default_factory=dict)
    log_level: str = "off"


def open_session(settings: SparkSettings) -> SparkSession:
    """The session for these settings; one that is already open in this process is used again.

    Raises UsageError for settings that would change what queries mean, and where no Java is found.
    """
    conf = {**DEFAULTS, **settings.conf, **FIXED}
    refuse_changed_meaning(settings.conf)
    if settings.master.startswith("sc://"):
        raise UsageError(
            f"Spark Connect is not supported: `{settings.master}`",
            code="spark_connect_unsupported",
            hint="use `local[*]` or the address of a cluster master such as `spark://host:7077`",
        )
    from pyspark.sql import SparkSession

    _quiet_query_loggers()
    active = SparkSession.getActiveSession()
    if active is not None:
        return _adopt(active, conf)
    with scratch_folder(SPARK_SCRATCH) as folder:
        return _launch(settings, conf, folder)


def close_session(session: SparkSession) -> None:
    """Ends the session; a later `open_session` starts a new one."""
    session.stop()


def refuse_changed_meaning(conf: Mapping[str, str]) -> None:
    """UsageError for settings asked for that would change what a query means."""
    for name in conf:
        if name.startswith("spark.sql.legacy."):
            raise UsageError(
                f"Setting `{name}` may change what a query means",
                code="spark_setting_refused",
                hint="remove it from `spark.conf`; impctl computes by Spark's default rules",
            )
    for name, fixed in FIXED.items():
        if name in conf and str(conf[name]).lower() != fixed.lower():
            raise UsageError(
                f"Setting `{name}` must be {fixed}",
                code="spark_setting_refused",
                hint="remove it from `spark.conf`; impctl computes by Spark's default rules",
            )


def _quiet_query_loggers() -> None:
    """Spark's Python side repeats every failed query as JSON on stderr; impctl reports it once."""
    from pyspark.logger import PySparkLogger

    for name in QUERY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def _adopt(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """An open session with the settings that can still be changed on it."""
    for name, value in conf.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


def _launch(settings: SparkSettings, conf: dict[str, str], folder: Path) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    options = conf.get(_JAVA_OPTIONS, "")
    if _LOG_CONFIGURATION not in options:
        logging_file = folder / "log4j2.properties"
        logging_file.write_text(_LOGGING.format(level=settings.log_level), encoding="utf-8")
        conf[_JAVA_OPTIONS] = f"-D{_LOG_CONFIGURATION}={logging_file.as_uri()} {options}".strip()
    builder = SparkSession.builder.master(settings.master)
    for name, value in conf.items():
        builder = builder.config(name, value)
    with _launch_environment(folder / "java", settings.master):
        try:
            return builder.getOrCreate()
        except PySparkException as error:
            raise UsageError(
                f"Spark did not start on `{settings.master}`: {error}",
                code="spark_start_failed",
                hint="run again with `-v` to see Spark's own log; check `spark.conf` and memory",
            ) from error


@contextmanager
def _launch_environment(java_home: Path, master: str) -> Iterator[None]:
    """Environment in which pyspark starts the JVM; as it was before afterwards.

    Windows starts Java by another script, which the launcher cannot stand in for. Local workers
    run this very Python, which has pyarrow; what a cluster has, its own settings say.
    """
    wanted: dict[str, str] = {}
    if master.startswith("local"):
        wanted["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
    java = find_java(os.environ)
    if os.name != "nt":
        write_launcher(java, java_home)
        wanted["JAVA_HOME"] = str(java_home)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

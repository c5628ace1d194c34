"""Starting the JVM that a session runs in: its Java, its settings, its log.

Law: settings may hold keys and tokens, so they go to the JVM in a file that only its owner reads,
not on a command line, which every user of the machine can read. The environment is afterwards as
it was before.
Out of scope: what may be set (`spark.session`), finding Java (`spark.java`), where temporary files
go (`spark.local_folders`), a start that is given up (`spark.starting`).
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from impctl.errors import UsageError
from impctl.spark.java import find_java, write_launcher
from impctl.spark.local_folders import local_folders
from impctl.spark.starting import ended_with_its_start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
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
# If its level is not set here, Spark raises the root to WARN and prints that.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
"""


def launch(master: str, conf: Mapping[str, str], log_level: str, folder: Path) -> SparkSession:
    """A new session in this process's JVM, which is started where there is none yet.

    `folder` takes the files the JVM starts from. Raises UsageError where Spark does not start.
    """
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    options = _java_options(conf, log_level, folder)
    builder = SparkSession.builder.master(master)
    wanted: dict[str, str] = {}
    if SparkContext._gateway is None:
        local = local_folders(master, conf, os.environ)
        # What the user says of it comes later, and Java takes the last.
        conf = {**conf, **local.conf, _JAVA_OPTIONS: f"{local.java_option} {options}"}
        settings_file = write_properties(folder / "spark.properties", conf)
        wanted = {**local.environment, _SUBMIT_ARGUMENTS: _submit_arguments(settings_file)}
    else:
        # A JVM that runs already takes settings by calls.
        for name, value in {**conf, _JAVA_OPTIONS: options}.items():
            builder = builder.config(name, value)
    with ended_with_its_start(), _environment(folder, master, wanted):
        try:
            return builder.getOrCreate()
        except PySparkException as error:
            raise UsageError(
                f"Spark did not start on `{master}`: {error}",
                code="spark_start_failed",
                hint="run again with `-vv` to see Spark's log; check `spark.conf` and memory",
            ) from error


def jvm_cpu_ms(session: SparkSession) -> float | None:
    """CPU time of the JVM so far; None where another process owns it, or not on Linux."""
    process = getattr(getattr(session.sparkContext, "_gateway", None), "proc", None)
    try:
        with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:  # type: ignore[union-attr]
            fields = file.read().rpartition(")")[2].split()
    except (OSError, AttributeError):
        return None
    user, system = fields[11:13]
    return (int(user) + int(system)) * 1000.0 / os.sysconf("SC_CLK_TCK")


def write_properties(path: Path, conf: Mapping[str, str]) -> Path:
    """Settings as Java reads them (`java.util.Properties`), in a file for its owner only."""
    lines = [f"{_escaped(name)}={_escaped(value)}\n" for name, value in conf.items()]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.writelines(lines)
    return path


def _escaped(text: str) -> str:
    """Everything but letters, digits and dots as UTF-16 code units, so that nothing is trimmed."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(
        chr(code) if code < 128 and (chr(code).isalnum() or chr(code) == ".") else f"\\u{code:04x}"
        for code in codes
    )


def _java_options(conf: Mapping[str, str], log_level: str, folder: Path) -> str:
    options = conf.get(_JAVA_OPTIONS, "")
    if _LOG_CONFIGURATION in options:
        return options
    logging_file = folder / "log4j2.properties"
    logging_file.write_text(_LOGGING.format(level=log_level), encoding="utf-8")
    return f"-D{_LOG_CONFIGURATION}={logging_file.as_uri()} {options}".strip()


@contextmanager
def _environment(folder: Path, master: str, wanted: Mapping[str, str]) -> Iterator[None]:
    """Environment in which pyspark starts the JVM; as it was before afterwards.

    Windows starts Java by another script, which the launcher cannot stand in for. Local workers
    run this very Python, which has pyarrow; what a cluster has, its own settings say.
    pyspark has the JVM tell where it listens in a temporary file, which is put into `folder`.
    """
    wanted = dict(wanted)
    if master.startswith("local"):
        wanted["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
    java = find_java(os.environ)
    if os.name != "nt":
        write_launcher(java, folder / "java")
        wanted["JAVA_HOME"] = str(folder / "java")
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    temporary, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = temporary
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _submit_arguments(settings_file: Path) -> str:
    """What spark-submit is called with: our file, then what the user's environment asks for."""
    given = os.environ.get(_SUBMIT_ARGUMENTS, "pyspark-shell")
    if "--properties-file" in given:
        raise UsageError(
            f"{_SUBMIT_ARGUMENTS} has a `--properties-file`, and Spark accepts only one",
            code="spark_setting_refused",
            hint="move its settings to `spark.conf` in the workload file or to spark-defaults.conf",
        )
    return f"--properties-file {shlex.quote(str(settings_file))} --load-spark-defaults {given}"

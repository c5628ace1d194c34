"""The JVM's start: settings arrive as written, on no command line, and beat the surroundings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from impctl.errors import UsageError
from impctl.spark.session import SparkSettings, open_session, write_properties

pytestmark = pytest.mark.usefixtures("launched_here")

ODD = " =:#!\\ \t\nä€\U0001f511 '\"$(id) %s "
STARTED = """
import sys
from pathlib import Path
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
session.stop()
session = open_session(SparkSettings("local[1]", {"spark.my.token": "second"}))
assert session.sparkContext.getConf().get("spark.my.token") == "second"
session.stop()
print("held")
"""
INSTALLED = """
from impctl.errors import UsageError
from impctl.spark.session import SparkSettings, open_session

try:
    session = open_session(SparkSettings("local[1]", {"spark.driver.memory": "1g"}))
except UsageError as error:
    print(error.code, error.message)
else:
    told = session.sparkContext.getConf()
    assert told.get("spark.sql.legacy.statisticalAggregate") == "true"
    assert told.get("spark.sql.legacy.timeParserPolicy") == "LEGACY"
    print([name for name in session.conf.getAll if "legacy" in name and "pyspark" not in name])
    print(session.conf.get("spark.sql.legacy.timeParserPolicy"))
    print(session.conf.get("spark.sql.parquet.datetimeRebaseModeInRead"))
    session.stop()
"""
LEGACY = """
spark.sql.legacy.statisticalAggregate true
spark.sql.parquet.datetimeRebaseModeInRead LEGACY
"""


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    file = write_properties(tmp_path / "p", {"spark.x": "a b", "spark.ü": "€"})
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text() == "spark.x=a\\u0020b\nspark.\\u00fc=\\u20ac\n"


def test_a_second_properties_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--properties-file mine.conf pyspark-shell")
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(UsageError, match="accepts only one") as caught:
        open_session(SparkSettings("local[1]"))
    assert caught.value.hint


@pytest.mark.spark
def test_settings_arrive_unseen() -> None:
    surroundings = "--conf spark.sql.ansi.enabled=false --conf spark.sql.session.timeZone=CET"
    env = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"{surroundings} pyspark-shell"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", STARTED, f"SECRET{ODD}SECRET"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("held\n", "")


def installed(folder: Path, defaults: str) -> list[str]:
    """What a session says where the installation has these defaults, and the environment others."""
    (folder / "spark-defaults.conf").write_text(defaults)
    env = {
        **os.environ,
        "SPARK_CONF_DIR": str(folder),
        "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.legacy.timeParserPolicy=LEGACY pyspark-shell",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", INSTALLED],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.spark
def test_the_installation_does_not_change_what_a_query_means(tmp_path: Path) -> None:
    """With the legacy aggregate, the variance of one row was NaN where the engine has NULL."""
    assert installed(tmp_path, LEGACY) == ["[]", "CORRECTED", "CORRECTED"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_what_the_installation_says_for_good_is_refused_by_name(tmp_path: Path) -> None:
    name = "spark.sql.legacy.sessionInitWithConfigDefaults"
    (said,) = installed(tmp_path, f"{name} true")
    assert said.startswith("spark_setting_refused")
    assert name in said

"""The JVM's start: settings arrive as written, on no command line, and beat the surroundings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from impctl.errors import UsageError
from impctl.spark.launch import write_properties
from impctl.spark.session import SparkSettings, open_session

ODD = " =:#!\\ \t\nä€\U0001f511 '\"$(id) %s "
STARTED = """
import sys
from pathlib import Path
from impctl.spark.session import SparkSettings, close_session, open_session

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
close_session(session)
session = open_session(SparkSettings("local[1]", {"spark.my.token": "second"}))
assert session.sparkContext.getConf().get("spark.my.token") == "second"
close_session(session)
print("held")
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
    with pytest.raises(UsageError, match="takes only one") as caught:
        open_session(SparkSettings("local[1]"))
    assert caught.value.hint


@pytest.mark.spark
@pytest.mark.parametrize("token", ["SECRET", f"SECRET{ODD}SECRET"])
def test_settings_arrive_unseen(token: str) -> None:
    surroundings = "--conf spark.sql.ansi.enabled=false --conf spark.sql.session.timeZone=CET"
    env = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"{surroundings} pyspark-shell"}
    done = subprocess.run(
        [sys.executable, "-c", STARTED, token], env=env, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("held\n", "")

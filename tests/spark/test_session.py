"""The session: quiet, with one meaning of SQL, refusing settings that change it."""

from __future__ import annotations

import os
import subprocess
import sys

import pyspark
import pytest
from pyspark.sql import SparkSession

from impctl.errors import UsageError
from impctl.spark.session import FIXED, SparkSettings, is_connect, open_session, require_release

LOUD_PROGRAM = """
from impctl.errors import ImpctlError
from impctl.spark.session import SparkSettings, open_session
from impctl.spark.run import run_sql

session = open_session(SparkSettings("local[1]", {"spark.driver.memory": "1g"}))
run_sql(session, "SELECT sum(id) FROM t", {"t": session.range(10)})
try:
    run_sql(session, "SELECT 1 / id FROM t", {"t": session.range(10)})
except ImpctlError as error:
    print(type(error).__name__)
session.stop()
"""


@pytest.mark.parametrize("name", sorted(FIXED))
def test_settings_that_change_meaning_are_refused(name):
    with pytest.raises(UsageError) as caught:
        open_session(SparkSettings("local[1]", {name: "surely something else"}))
    assert name in caught.value.message


@pytest.mark.parametrize("version", ["3.5.6", "4.0.1", "4", "unknown"])
def test_an_older_spark_is_refused_by_name(monkeypatch, version):
    monkeypatch.setattr(pyspark, "__version__", version)
    monkeypatch.setattr("impctl.spark.session.launch", None)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(
        UsageError, match=f"This is Spark {version}, but impctl needs 4.1"
    ) as caught:
        open_session(SparkSettings("local[1]"))
    assert caught.value.code == "spark_too_old"
    assert "pip install 'pyspark>=4.1,<5'" in str(caught.value.hint)


@pytest.mark.parametrize("version", ["4.1.0", "4.3.0.dev1", "4.10.2", "5.0"])
def test_a_newer_spark_is_taken(version):
    require_release(version)


@pytest.mark.spark
@pytest.mark.usefixtures("launched_here")
def test_nothing_but_the_answer_is_printed():
    answer = subprocess.run(
        [sys.executable, "-P", "-c", LOUD_PROGRAM], capture_output=True, text=True, check=False
    )
    assert answer.stderr == ""
    assert answer.stdout == "EvaluationError\n"
    assert answer.returncode == 0


@pytest.mark.spark
def test_tests_run_in_a_jvm_for_a_short_life(spark, request):
    """Nothing else would tell if it were as it comes; tests would only take longer."""
    if is_connect(spark):
        pytest.skip("the JVM is the server's")
    if any(item.get_closest_marker("alone") for item in request.session.items):
        pytest.skip("a test that measures runs in the same JVM")
    factory = spark.sparkContext._jvm.java.lang.management.ManagementFactory
    started_with = set(factory.getRuntimeMXBean().getInputArguments())
    assert set(os.environ["SPARK_SUBMIT_OPTS"].split()) <= started_with


@pytest.mark.spark
def test_fixed_settings_hold(spark):
    for name, value in FIXED.items():
        assert spark.conf.get(name) == value
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.spark
def test_open_session_is_used_again(spark):
    assert open_session(SparkSettings("local[2]")) is spark


@pytest.mark.spark
def test_environment_is_left_alone(spark):
    assert "impctl-spark-" not in os.environ.get("JAVA_HOME", "")

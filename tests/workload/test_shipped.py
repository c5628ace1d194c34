"""The workloads and profiles that come with impctl are sound and say what their comments claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.service.init import DEMO_QUERIES, DEMO_TEXT
from impctl.workload.load import load_spark_profile, load_workload, workload_of
from impctl.workload.models import ChangeSpec, DeleteSpec, InsertSpec

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = sorted((ROOT / "workloads").glob("*.yaml"))
PROFILES = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.name)
def test_every_workload_loads_without_any_variable(path: Path) -> None:
    workload = load_workload(path, {})
    assert workload.name == path.stem
    assert path.read_text().startswith("# "), "a comment says what it exercises"
    for table in workload.tables.values():
        assert table.path == str(ROOT / "demo" / table.name)
    elsewhere = load_workload(path, {"IMPCTL_DATA": "/data"})
    assert [table.path for table in elsewhere.tables.values()] == [
        f"/data/{name}" for name in elsewhere.tables
    ]
    assert Path(workload.store) == ROOT / "workloads" / ".impctl" / path.stem
    candidates = {(spec.table, spec.column) for spec in workload.partitions}
    for query in workload.queries.values():
        assert set(query.sketch.items()) <= candidates


def test_the_workloads_are_there() -> None:
    names = ["crimes", "joins", "orders", "running-example", "synthetic", "tpch"]
    assert [path.stem for path in WORKLOADS] == names


def test_the_running_example_is_the_documented_one() -> None:
    workload = load_workload(ROOT / "workloads" / "running-example.yaml", {})
    price = next(spec for spec in workload.partitions if spec.column == "price")
    assert price.boundaries == (601, 1001, 1501)
    assert workload.queries["q_top"].sketch == {"sales": "price"}
    s8, old, rise = workload.updates
    assert isinstance(s8, InsertSpec)
    assert s8.rows == (
        {"sid": 8, "brand": "HP", "productName": "HP ProBook 650 G10", "price": 1299, "numSold": 1},
    )
    assert isinstance(old, DeleteSpec)
    assert (old.name, old.where) == ("old", "sid = 3")
    assert isinstance(rise, ChangeSpec)
    assert (rise.assignments, rise.where) == ({"price": "price * 1.1"}, "brand = 'Dell'")


def test_limits_of_the_synthetic_workload_follow_a_variable() -> None:
    path = ROOT / "workloads" / "synthetic.yaml"
    assert "< 1600" in load_workload(path, {}).queries["q_avg"].sql
    assert "< 17" in load_workload(path, {"SYNTHETIC_LIMIT": "17"}).queries["q_avg"].sql


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.name)
def test_every_profile_loads_and_keeps_the_rules_results_rest_on(path: Path) -> None:
    profile = load_spark_profile(path, {"IMPCTL_SPARK_MEMORY": "3g"})
    assert profile.master is not None
    assert profile.conf["spark.driver.memory"] == "3g"
    assert profile.conf["spark.sql.ansi.enabled"] == "true"
    assert profile.conf["spark.sql.session.timeZone"] == "UTC"


def test_the_demo_of_init_has_the_queries_of_make_demo() -> None:
    demo = workload_of(Path("demo.yaml"), DEMO_TEXT, {})
    shipped = load_workload(ROOT / "workloads" / "orders.yaml", {})
    assert tuple(demo.queries) == tuple(shipped.queries) == DEMO_QUERIES
    for name in DEMO_QUERIES:
        one, other = demo.queries[name], shipped.queries[name]
        assert (one.sql, one.answer) == (other.sql, other.answer)

"""Tables of a suite: written once, again for another request, never over files of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from benchmarks.data import make_data, requests_of
from benchmarks.suite import DataSpec
from impctl.errors import Location, UsageError, WorkloadError
from impctl.service.context import SilentReporter
from tests.support.refused import refused

PLACE = Location("s.yaml", 3, 5)


def spec(example: str = "synthetic", **options: Any) -> DataSpec:
    rows, least = options.pop("rows", None), options.pop("least", 1)
    return DataSpec("t", example, rows, least, options, options.pop("source", None), PLACE)


def make(folder: Path, data: DataSpec, scale: float = 1.0, seed: int = 1) -> DeltaTable:
    requests = requests_of([data], scale=scale, seed=seed, source=None)
    make_data(requests, folder, SilentReporter())
    return DeltaTable(folder / "t")


def rows_of(table: DeltaTable) -> int:
    return int(table.to_pyarrow_table().num_rows)


def test_a_table_is_written_once_and_again_for_another_request(tmp_path: Path) -> None:
    data = spec(rows=1000, groups=5)
    first = make(tmp_path, data).metadata().id
    assert rows_of(make(tmp_path, data)) == 1000
    assert make(tmp_path, data).metadata().id == first
    assert make(tmp_path, data, seed=2).metadata().id != first
    assert rows_of(make(tmp_path, data, scale=0.1)) == 100


def test_rows_shrink_with_the_scale_but_not_below_the_least(tmp_path: Path) -> None:
    (request,) = requests_of([spec(rows=1000, least=300)], scale=0.1, seed=1, source=None)
    assert request.rows == 300
    (request,) = requests_of([spec(rows=1000, per_group=20)], scale=0.5, seed=1, source=None)
    assert (request.rows, request.groups) == (500, 25)


def test_a_seed_of_its_own_and_sorted_rows(tmp_path: Path) -> None:
    (request,) = requests_of([spec(seed=7, sorted=True)], scale=1, seed=1, source=None)
    assert (request.seed, request.sort_rows) == (7, True)
    (request,) = requests_of([spec()], scale=1, seed=4, source=None)
    assert (request.seed, request.sort_rows) == (4, False)


@pytest.mark.parametrize("example", ["partners", "graph", "social"])
def test_tables_with_large_joins(example: str, tmp_path: Path) -> None:
    data = spec(example, rows=4000, least=400)
    (request,) = requests_of([data], scale=0.5, seed=1, source=None)
    assert request.rows == 2000
    make_data([request], tmp_path, SilentReporter())
    marker = (tmp_path / ".t.request.json").read_text()
    path = tmp_path / "t" / "message" if example == "social" else tmp_path / "t"
    first = DeltaTable(path)
    assert rows_of(first) == 2000
    make_data([request], tmp_path, SilentReporter())
    assert DeltaTable(path).metadata().id == first.metadata().id
    (other,) = requests_of([data], scale=0.5, seed=2, source=None)
    assert other.text() != marker == request.text()


def test_the_shape_of_a_graph_and_of_partners_is_part_of_the_request(tmp_path: Path) -> None:
    one, other = (spec("graph", rows=700, per_group=7, exponent=given) for given in (2.5, 3))
    requests = requests_of([one, other], scale=1, seed=1, source=None)
    assert [(request.groups, request.exponent) for request in requests] == [(100, 2.5), (100, 3.0)]
    (usual,) = requests_of([spec("partners", rows=900)], scale=1, seed=1, source=None)
    assert (usual.groups, usual.order, usual.sort_rows) == (None, None, False)
    (pairs,) = requests_of([spec("partners", rows=600, per_group=20)], scale=1, seed=1, source=None)
    make_data([pairs], tmp_path, SilentReporter())
    keys = DeltaTable(tmp_path / "t").to_pyarrow_table().column("a")
    assert {entry["counts"] for entry in keys.value_counts().to_pylist()} == {20}


def test_networks_by_their_shapes(tmp_path: Path) -> None:
    specs = [
        replace(spec("network", shape="transit_stub", groups=25), name="links"),
        replace(spec("network", shape="chain", rows=40, least=30), name="chain"),
        replace(spec("network", shape="sensors", rows=100, least=64), name="field"),
        replace(spec("network", shape="forest", rows=60, groups=7), name="trees"),
    ]
    specs[0] = replace(specs[0], rows=100, least=100)
    requests = requests_of(specs, scale=0.5, seed=3, source=None)
    assert [request.rows for request in requests] == [100, 30, 64, 30]
    make_data(requests, tmp_path, SilentReporter())
    for name, rows in (("links", 100), ("chain", 30), ("field/sensor", 64), ("trees", 30)):
        assert rows_of(DeltaTable(tmp_path / name)) == rows
    trees = DeltaTable(tmp_path / "trees").to_pyarrow_table().to_pydict()
    assert all(a // 7 == b // 7 for a, b in zip(trees["src"], trees["dst"], strict=True))


def test_a_list_that_is_given_and_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, links = spec("network", shape="given", rows=500), tmp_path / "links.csv"
    (alone,) = requests_of([data], scale=1, seed=1, source=None)
    assert (alone.shape, alone.rows, alone.source) == ("power_law", 500, None)
    with refused(UsageError, "source_missing"):
        requests_of([data], scale=1, seed=1, source=links)
    links.write_text("1,2\n2,3\n")
    (given,) = requests_of([data], scale=1, seed=1, source=links)
    assert (given.shape, given.rows, given.source) == ("given", None, str(links))
    make_data([given], tmp_path / "data", SilentReporter())
    assert rows_of(DeltaTable(tmp_path / "data" / "t")) == 2
    marker = given.text()
    links.write_text("1,2\n2,3\n3,4\n")
    assert given.text() != marker, "another list is another request"
    # The crimes data come with `--source` unasked.
    monkeypatch.setenv("IMPCTL_CRIMES", str(links))
    assert requests_of([data], scale=1, seed=1, source=links) == (alone,)


def test_what_impctl_did_not_write_stays(tmp_path: Path) -> None:
    own = tmp_path / "t" / "notes.txt"
    own.parent.mkdir()
    own.write_text("mine")
    with refused(UsageError, "data_not_ours"):
        make(tmp_path, spec(rows=10))
    assert own.read_text() == "mine"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (spec(group=5), "Example `synthetic` has no option `group`"),
        (spec(groups=0), "Option `groups` of `t` must be above 0"),
        (spec(groups="x"), "Option `groups` of `t` must be a number"),
        (spec(groups=True), "Option `groups` of `t` must be a number"),
        (spec(groups=(1, 2)), "Option `groups` of `t` must be a number"),
        (spec(sorted=1), "Option `sorted` of `t` must be true or false"),
        (spec(groups=2, per_group=2), "`t` has both `groups` and `per_group`"),
        (spec("graph", exponent="x"), "Option `exponent` of `t` must be a number"),
        (
            spec("network", shape="ring"),
            "Option `shape` of `t` must be one of transit_stub, grid"
            ", chain, forest, random, power_law, communities, circles, sensors, alarms"
            ", worked_example, given",
        ),
        (spec("network", exponent=2), "Example `network` has no option `exponent`"),
        (spec("social", groups=2), "Example `social` has no option `groups`"),
        (spec("crimes", groups=2), "Example `crimes` has no option `groups`"),
        (spec("tpch", scale_factor="x"), "Option `scale_factor` of `t` must be a number"),
    ],
)
def test_wrong_options_are_told_before_anything_is_written(data: DataSpec, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        requests_of([data, data], scale=1, seed=1, source=None)
    assert [problem.message for problem in caught.value.problems] == [message, message]
    assert all(problem.location == PLACE and problem.hint for problem in caught.value.problems)


@pytest.mark.parametrize("example", ["crimes", "tpch"])
def test_a_missing_source_is_told_with_what_to_do(
    example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.data._generator", lambda: None)
    with refused(UsageError, "source_missing") as caught:
        requests_of([spec(example)], scale=1, seed=1, source=Path("nowhere"))
    assert "--source" in (caught.value.hint or "")
    assert caught.value.location == PLACE


def test_a_crimes_file_is_no_tpch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable names the source of either, so the wrong kind counts as none."""
    monkeypatch.setattr("benchmarks.data._generator", lambda: "tpchgen-cli")
    file = tmp_path / "crimes.parquet"
    file.write_text("")
    (request,) = requests_of([spec("tpch", scale_factor=2)], scale=0.5, seed=1, source=file)
    assert (request.source, request.scale_factor) == (None, 1.0)
    with pytest.raises(UsageError):
        requests_of([spec("crimes")], scale=1, seed=1, source=tmp_path)

"""A capture stays within its memory: joins in slices, then as trees, then the sketch alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.errors import TableError
from impctl.service import capture, fill
from impctl.service.filters import Slices
from impctl.service.memory_limit import too_large
from tests.support.kept_workload import stored
from tests.support.run_cli import Cli, CliOf

ROWS = 3_000
SQL = "SELECT r.a, SUM(s.b) AS t FROM r JOIN s ON s.a = r.a GROUP BY r.a HAVING SUM(s.b) > 1"


@dataclass
class ShortMemory:
    """Enough for two batches; an index join of these tables passes more slices."""

    bytes: int | None = None
    checked: int = 0

    def check(self, more: int = 0) -> None:
        self.checked += 1
        if self.checked > 2:
            raise too_large(10**6)


@pytest.fixture
def cli(tmp_path: Path, cli_of: CliOf, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setattr(fill, "MemoryLimit", lambda _: ShortMemory())
    ids = list(range(ROWS))
    for table in "rs":
        write_deltalake(str(tmp_path / table), pa.table({"id": ids, "a": ids, "b": ids}))
    document: dict[str, Any] = {
        "version": 1,
        "store": "store",
        "tables": {name: {"path": name} for name in "rs"},
        "partitions": {"r": {"id": {"ranges": 20}}},
        "queries": {"q": {"sql": SQL, "sketch": {"r": "id"}}},
    }
    return cli_of(json.dumps(document))


def asked(cli: Cli, **settings: Any) -> None:
    document = json.loads(cli.workload.read_text())
    document["queries"]["q"] |= settings
    cli.workload.write_text(json.dumps(document))


@pytest.mark.slow
def test_what_cannot_be_kept_joined_is_kept_as_trees(cli: Cli) -> None:
    """By their keys alone, each with one partner, an index was chosen."""
    (entry,) = cli.good("explain").results[0]["trees"]
    assert not entry["used"]
    assert cli.good("capture").results[0]["mode"] == "exact"
    held = stored(cli.workload.parent, "q", "store")
    assert held.state_meta["trees"]
    assert "its joins are trees, because" in held.state_meta["way"]
    (entry,) = cli.good("explain").results[0]["trees"]
    assert (entry["used"], entry["reason"]) == (True, "chosen: as captured")
    write_deltalake(
        str(cli.workload.parent / "r"),
        pa.table({"id": [ROWS], "a": [5], "b": [1]}),
        mode="append",
    )
    assert cli.good("maintain").results[0]["action"] == "exact"


def test_an_answer_that_trees_tell_goes_along(cli: Cli) -> None:
    asked(cli, answer=True)
    ran = cli.good("capture")
    assert ran.results[0]["mode"] == "exact"
    assert not any("along with the sketch" in warning for warning in ran.document["warnings"])
    assert len(cli.one("query", "--by", "state")["rows"]) == ROWS - 2


def test_an_answer_that_no_tree_tells_is_left_out_first(cli: Cli) -> None:
    counted = "AS t, COUNT(DISTINCT s.b) + COUNT(DISTINCT r.b) AS n"
    asked(cli, answer=True, sql=SQL.replace("AS t", counted))
    ran = cli.good("capture")
    assert ran.results[0]["mode"] == "exact"
    assert any("along with the sketch" in warning for warning in ran.document["warnings"])


@pytest.mark.slow
def test_trees_stay_trees_where_the_answer_is_left_out(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred partners a row: an index join without the answer would be the worse way."""
    short = iter([ShortMemory(checked=2)])
    monkeypatch.setattr(fill, "MemoryLimit", lambda _: next(short, ShortMemory(checked=-(10**9))))
    keys = [at % 30 for at in range(ROWS)]
    for table in "rs":
        path = str(cli.workload.parent / table)
        rows = pa.table({"id": list(range(ROWS)), "a": keys, "b": keys})
        write_deltalake(path, rows, mode="overwrite")
    asked(cli, answer=True)
    assert any(
        "along with the sketch" in warning for warning in cli.good("capture").document["warnings"]
    )
    explained = cli.one("explain")
    assert (explained["trees"][0]["used"], explained["answer"]["kept"]) == (True, False)
    assert "could not store it" in explained["answer"]["reason"]


def test_an_index_that_was_asked_for_leaves_the_sketch_alone(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "recaptured", Mock(side_effect=TableError("Spark was asked")))
    asked(cli, join="index")
    assert cli("capture").error["message"] == "Spark was asked"


@dataclass
class Joining:
    """A compiled query whose rows are joined to so many each."""

    partners: int
    writes_joins: bool = True
    circuit: Any = field(default_factory=lambda: SimpleNamespace(joined_rows=0))

    def slices(self, rows: int, limit: int | None) -> list[int]:
        result = []
        cut = Slices(cast(Any, self), limit, lambda: None)
        for part in cut.of(pa.table({"a": range(rows)})):
            result.append(len(part))
            self.circuit.joined_rows += len(part) * self.partners
        assert sum(result) == rows
        return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partners", "limit", "most"),
    [(1, None, 8_000_000), (200, None, 8_000_000), (200, 300 * 10**6, 187_500), (0, None, 10**9)],
)
def test_slices_join_to_no_more_than_there_is_room_for(
    partners: int, limit: int | None, most: int
) -> None:
    first, *others = Joining(partners).slices(1_000_000, limit)
    assert first == 1_000
    assert all(size * partners <= most for size in others)
    # Each slice is at most eight times the one before.
    assert len(others) <= 1_000_000 * max(partners, 1) // most + 4


@pytest.mark.slow
def test_rows_that_are_not_joined_pass_whole() -> None:
    assert Joining(5, writes_joins=False).slices(1_000_000, 10**6) == [1_000_000]

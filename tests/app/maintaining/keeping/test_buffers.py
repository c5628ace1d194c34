"""Under a budget first rows, and values of MIN and MAX, are bounded: sketches and answers stay
those of all kept, through deletions that use buffers up, and the choice is told."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.app.workbench.sessions import OwnSession
from impctl.store.store import Store
from impctl.tables.write.create import create_table
from tests.support.kept_workload import stored
from tests.support.run_cli import Cli

QUERIES = {
    "first": "SELECT g, x FROM (SELECT g, x, row_number() OVER (PARTITION BY g ORDER BY x, k) n"
    " FROM t) q WHERE n <= 2",
    "ranked": "SELECT g, k FROM (SELECT g, k, rank() OVER (PARTITION BY g ORDER BY x DESC) r"
    " FROM t WHERE k > 20) q WHERE r <= 3",
    # A sum of doubles keeps the groups from being read: what is left out are values.
    "ends": "SELECT g, MIN(x) low, MAX(x) high, SUM(d) s FROM t GROUP BY g HAVING MIN(x) < 90000",
    "sets": "SELECT g, h, MAX(x) m, SUM(d) s FROM t GROUP BY GROUPING SETS ((g), (h))"
    " HAVING MAX(x) > 10",
    "of_groups": "SELECT h, n FROM (SELECT h, k % 400 p, COUNT(*) n, SUM(d) s, rank() OVER"
    " (PARTITION BY h ORDER BY COUNT(*) DESC, k % 400) r FROM t GROUP BY h, k % 400) q WHERE r < 3",
}
PIECES = {
    "first": {"top0"},
    "ranked": {"top0"},
    "ends": {"aggregate0"},
    "sets": {"aggregate0", "aggregate1"},
    "of_groups": {"top0"},
}
ROWS = 6000


def some(rng: random.Random, count: int, first: int) -> pa.Table:
    return pa.table(
        {
            "k": pa.array(range(first, first + count), pa.int64()),
            "g": pa.array([rng.choice((None, 0, 1, 2, 3, 4)) for _ in range(count)], pa.int32()),
            "h": pa.array([rng.choice("abc") for _ in range(count)], pa.string()),
            "x": pa.array([rng.choice((None, *range(0, 100_000, 7))) for _ in range(count)], pa.int64()),
            "d": pa.array([rng.choice((0.5, 1.25, 4.0)) for _ in range(count)], pa.float64()),
        }
    )


def change(folder: Path, rng: random.Random, turn: int) -> None:
    """Rows come; then the best of some order go, so many that buffers are used up."""
    table = DeltaTable(str(folder / "t"))
    if turn % 3 == 0:
        write_deltalake(str(folder / "t"), some(rng, 20, 10_000 * (turn + 1)), mode="append")
    elif turn % 3 == 1:
        table.delete(f"x < {5_000 * (turn + 1)} OR x IS NULL")
    else:
        table.delete(f"x > {97_000 - 4_000 * turn}")


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    def no_spark(*_: object) -> None:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr(OwnSession, "open", no_spark)
    create_table(str(tmp_path / "t"), some(random.Random(1), ROWS, 0))
    lines = "".join(
        f'  {name}{twin}: {{sql: "{sql}", sketch: {{t: x}}, answer: true, {more}}}\n'
        for name, sql in QUERIES.items()
        for twin, more in (("", "policy: incremental"), ("_kept", "join: index"))
    )
    file = tmp_path / "w.yaml"
    file.write_text(
        "version: 1\ntables: {t: {path: t}}\npartitions: {t: {x: {boundaries: [10_000, 30_000, 90_000]}}}\n"
        f"queries:\n{lines}store: .impctl\n"
    )
    return Cli(capsys, file)


def bounded(folder: Path, name: str) -> dict[str, int]:
    found = stored(folder, name).state_meta.get("buffers", {})
    assert isinstance(found, dict)
    return found


def bytes_of(folder: Path, name: str, piece: str) -> int:
    with Store.open(folder / ".impctl", create=False) as held:
        return sum(r.bytes for r in held.run_refs(name) if r.arrangement.startswith(f"{piece}."))


def assert_alike(cli: Cli, folder: Path) -> None:
    for name in QUERIES:
        one, twin = stored(folder, name), stored(folder, f"{name}_kept")
        assert one.versions == twin.versions
        mine, theirs = (
            {sketch.access: set(sketch.fragments.ids) for sketch in held.sketches}
            for held in (one, twin)
        )
        assert mine == theirs, name
        assert rows_of(cli, name) == rows_of(cli, f"{name}_kept")


def rows_of(cli: Cli, name: str) -> list[Any]:
    (found,) = cli.good("query", "--query", name).results
    return sorted(map(repr, found["rows"]))


def test_buffers_come_and_go_and_no_sketch_or_answer_notices(cli: Cli, tmp_path: Path) -> None:
    cli.good("capture", "--disk", "1GB")
    rng = random.Random(5)
    assert not any(bounded(tmp_path, name) for name in QUERIES)
    free = cli.workload.read_text()
    kept = free.replace("policy: incremental", "policy: incremental, state: keep")
    refilled = 0
    for turn in range(6):
        change(tmp_path, rng, turn)
        if turn % 2 == 0:
            whole = {(n, p): bytes_of(tmp_path, n, p) for n in QUERIES for p in PIECES[n]}
            cli.good("maintain", "--disk", "0")
            for name, pieces in PIECES.items():
                assert bounded(tmp_path, name).keys() >= pieces, name
                for piece in pieces:
                    assert bytes_of(tmp_path, name, piece) < whole[name, piece]
                assert not bounded(tmp_path, f"{name}_kept")
        else:
            refilled += sum(
                r["refilled_groups"] for r in cli.good("maintain", "--disk", "0").results
            )
            assert_alike(cli, tmp_path)
            cli.workload.write_text(kept)
            cli.good("maintain", "--disk", "1GB")
            cli.workload.write_text(free)
            assert not any(bounded(tmp_path, name) for name in QUERIES)
        assert_alike(cli, tmp_path)
    assert refilled > 0

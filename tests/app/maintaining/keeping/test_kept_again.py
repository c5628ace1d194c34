"""Sides that are kept again hold what they would have held all along, whatever the clock does."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake

from impctl.data.pages import table_of
from impctl.service.budget.choice import Kept, Wanted
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.app.maintaining.keeping.stored_pieces import assert_alike, fragments, read_pieces
from tests.support.kept_workload import stored
from tests.support.made_once import CliOnce
from tests.support.run_cli import Cli, CliOf

SQL = "SELECT t.g FROM t JOIN u ON t.k = u.k WHERE date_add(t.d, u.n) > current_date()"


def left_rows() -> pa.Table:
    days = [dt.date(2026, 1, day) for day in (1, 5, 10, 15, 20)]
    keys = pa.array([None, 1, 2, None, 3], pa.int64())
    return pa.table({"g": pa.array([1, 2, 3, 4, 5], pa.int64()), "k": keys, "d": days})


def right_rows() -> pa.Table:
    keys = pa.array([None, 1, 2, None, 9], pa.int64())
    return pa.table({"k": keys, "n": pa.array([1, 10, 30, 20, 5], pa.int32())})


def grow(folder: Path) -> None:
    write_deltalake(str(folder / "t"), left_rows(), mode="append")
    write_deltalake(str(folder / "u"), right_rows(), mode="append")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, cli_once: CliOnce) -> Cli:
    """A query, read at first and then kept again, beside one whose rows were always kept."""
    monkeypatch.setenv("IMPCTL_NOW", "2026-01-20")

    def write(folder: Path) -> None:
        create_table(str(folder / "t"), left_rows())
        create_table(str(folder / "u"), right_rows())
        lines = "".join(
            f'  {name}: {{sql: "{SQL}", sketch: {{t: g}}, join: {join}, policy: incremental}}\n'
            for name, join in (("q", "auto"), ("twin", "index"))
        )
        (folder / "w.yaml").write_text(
            "version: 1\ntables: {t: {path: t}, u: {path: u}}\n"
            "partitions: {t: {g: {boundaries: [2, 3, 4, 5]}}}\n"
            f"queries:\n{lines}store: .impctl\n"
        )

    def go_and_come_back(cli: Cli) -> None:
        cli.good("capture")
        for sides in (("join0.left", "join0.right"), ()):
            of_q = Wanted(sides)
            monkeypatch.setattr(
                Kept, "wanted", lambda _, name, w=of_q: w if name == "q" else Wanted()
            )
            grow(cli.workload.parent)
            cli.good("maintain", "--disk", "0")
            assert tuple(read_pieces(cli.workload.parent, "q")) == sides

    cli = cli_once("kept again", write, go_and_come_back)
    monkeypatch.setattr(Kept, "wanted", lambda *_: Wanted())
    return cli


def held(folder: Path, name: str) -> dict[str, int]:
    """How many rows the joins' sides have in the store, by their weights."""
    with Store.open(folder / ".impctl", create=False) as store:
        runs = store.load_runs(name)
        return {
            side: sum(pc.sum(table_of(run)[0].column("weight")).as_py() for _, run in runs[side])
            for side in ("join0.left", "join0.right")
        }


def test_rows_that_never_find_a_partner_do_not_come_back(cli: Cli) -> None:
    folder = cli.workload.parent
    assert held(folder, "q") == held(folder, "twin") == {"join0.left": 9, "join0.right": 9}


@pytest.mark.slow
def test_a_clock_moves_what_is_kept_again(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cli.workload.parent
    for day in ("2026-01-25", "2026-02-05", "2026-02-15"):
        monkeypatch.setenv("IMPCTL_NOW", day)
        for result in cli.good("maintain").results:
            assert result["action"] == "exact", result
        assert fragments(folder, "q") == fragments(folder, "twin"), day


@pytest.mark.slow
def test_sides_that_the_clock_moves_are_not_given_up(
    tmp_path: Path, cli_of: CliOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPCTL_NOW", "2026-01-20")
    create_table(str(tmp_path / "t"), left_rows())
    create_table(str(tmp_path / "u"), right_rows())
    cli = cli_of(
        "version: 1\ntables: {t: {path: t}, u: {path: u}}\nbudget: {disk: 0}\n"
        f'queries:\n  q: {{sql: "{SQL}", sketch: {{t: g}}, policy: incremental}}\nstore: .impctl\n'
    ).captured()
    for day in ("2026-01-20", "2026-02-05"):
        monkeypatch.setenv("IMPCTL_NOW", day)
        grow(tmp_path)
        results = cli.good("maintain").results
        assert {result["action"] for result in results} == {"exact"}
        assert "from_files" not in stored(tmp_path, "q").state_meta


@pytest.mark.parametrize("sides", [(), ("join0.left", "join0.right")])
def test_a_table_in_place_of_another_is_not_read(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, sides: tuple[str, ...]
) -> None:
    """A backup of another day stands there for a while, and rows of it are in no state after."""
    folder = cli.workload.parent
    text = cli.workload.read_text().replace("u: {path: u}", "u: {path: u}, v: {path: v}")
    apart = '  apart: {sql: "SELECT t.g FROM t JOIN v ON t.k = v.k", sketch: {t: g}}\nstore:'
    create_table(str(folder / "v"), right_rows())
    cli.workload.write_text(text.replace("store:", apart))
    cli.good("capture", "--query", "apart")
    read = ("join0.left", "join0.right")
    monkeypatch.setattr(Kept, "wanted", lambda _, name: Wanted(read if name == "q" else ()))
    grow(folder)
    cli.good("maintain", "--disk", "0")
    other = right_rows().set_column(0, "k", pa.array([2, 2, 2, 2, 2], pa.int64()))
    (folder / "u").rename(folder / "aside")
    create_table(str(folder / "u"), other)
    for _ in range(3):
        write_deltalake(str(folder / "u"), other, mode="append")
    write_deltalake(str(folder / "v"), other, mode="append")
    monkeypatch.setattr(Kept, "wanted", lambda _, name: Wanted(sides if name == "q" else ()))
    cli.good("maintain", "--disk", "0", "--query", "apart")
    shutil.rmtree(folder / "u")
    (folder / "aside").rename(folder / "u")
    assert read_pieces(folder, "q") == list(read)
    grow(folder)
    cli.good("maintain")
    assert fragments(folder, "q") == fragments(folder, "twin")
    monkeypatch.setattr(Kept, "wanted", lambda *_: Wanted())
    grow(folder)
    cli.good("maintain", "--disk", "0")
    assert held(folder, "q") == held(folder, "twin")


GROUPED = (
    "SELECT t.g, COUNT(*) n FROM t JOIN u ON t.k = u.k GROUP BY t.g HAVING MAX(t.d) < current_date"
)


def grouped_rows(first: int) -> pa.Table:
    days = [dt.date(2026, 1, first + at) for at in range(8)]
    groups = pa.array([1, 2, 3, 4, None, 1, 2, 3], pa.int64())
    return pa.table({"g": groups, "k": pa.array([0, 1, 2, None] * 2, pa.int64()), "d": days})


@pytest.mark.slow
def test_they_are_kept_where_sides_are_read(
    tmp_path: Path, cli_of: CliOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPCTL_NOW", "2026-01-05")
    create_table(str(tmp_path / "t"), grouped_rows(1))
    create_table(str(tmp_path / "u"), pa.table({"k": pa.array([0, 1, None], pa.int64())}))
    lines = "".join(
        f'  {name}: {{sql: "{GROUPED}", sketch: {{t: g}}, join: {join}, policy: strict}}\n'
        for name, join in (("q", "files"), ("twin", "index"))
    )
    cli = cli_of(
        "version: 1\ntables: {t: {path: t}, u: {path: u}}\n"
        f"partitions: {{t: {{g: {{boundaries: [2, 3, 4]}}}}}}\nqueries:\n{lines}store: .impctl\n"
    ).captured("--disk", "0")
    match = []
    for day, first in ((8, 3), (12, 12), (6, 1), (25, 2)):
        monkeypatch.setenv("IMPCTL_NOW", f"2026-01-{day:02}")
        write_deltalake(str(tmp_path / "t"), grouped_rows(first), mode="append")
        ran = cli.good("maintain", "--disk", "0")
        assert {result["action"] for result in ran.results} == {"exact"}
        assert read_pieces(tmp_path, "q") == ["join0.left", "join0.right"]
        assert_alike(tmp_path, "q", "twin")
        match.append(fragments(tmp_path, "q"))
    assert len({str(one) for one in match}) > 1, "the clock moved something"

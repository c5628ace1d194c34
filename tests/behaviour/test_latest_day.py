"""The "latest day" on a real Delta table: what is kept of it, what is read, and that it is right.

The maximum moves both ways, by rows that come and by rows that go, beside other changes. After
every commit each query is maintained exactly, and its answer is DuckDB's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.duck import duck
from tests.support.kept_workload import stored
from tests.support.run_cli import Capsys, Cli

SUMS = "SELECT g, SUM(x) AS s, COUNT(*) AS n FROM t WHERE {} GROUP BY g"
QUERIES = {
    "latest": SUMS.format("day = (SELECT MAX(day) FROM t)"),
    "first": SUMS.format("day IN (SELECT MIN(day) FROM t)"),
    "since": SUMS.format("day >= (SELECT MAX(day) FROM t) - INTERVAL 1 DAY"),
    "hours": SUMS.format("ts > (SELECT MAX(ts) - INTERVAL 30 HOURS FROM t)"),
    "before": SUMS.format(
        "day = (SELECT MAX(day) FROM t WHERE day < (SELECT MAX(day) FROM t)) AND x > 2"
    ),
    "rows": "SELECT day, g, x FROM t WHERE x >= (SELECT AVG(x) FROM t) AND g = 1",
    "named": "SELECT name, COUNT(*) AS n FROM t JOIN d ON t.g = d.g "
    "WHERE day = (SELECT MAX(day) FROM t) GROUP BY name",
}
FIRST, DAYS = date(2026, 1, 1), 6


def rows(day: int | None, count: int, start: int = 0) -> pa.Table:
    """Rows of a day, or of none."""
    moment = FIRST if day is None else FIRST + timedelta(days=day)
    at = datetime.combine(moment, datetime.min.time(), UTC)
    return pa.table(
        {
            "day": pa.array([None if day is None else moment] * count, pa.date32()),
            "ts": pa.array(
                [at + timedelta(hours=row % 24) for row in range(count)],
                pa.timestamp("us", tz="UTC"),
            ),
            "g": pa.array([row % 3 for row in range(start, start + count)], pa.int64()),
            "x": pa.array([None if row % 5 == 4 else row % 7 for row in range(count)], pa.int64()),
        }
    )


def write_workload(folder: Path, head: str = "", names: Sequence[str] = tuple(QUERIES)) -> Path:
    """A table with a file of each day, another one, and the workload file beside them."""
    create_table(str(folder / "t"), rows(0, 8))
    for day in range(1, DAYS):
        append(day, 8)(folder)
    create_table(str(folder / "d"), pa.table({"g": [0, 1, 2], "name": ["a", "b", "a"]}))
    text = f"version: 1\ntables:\n  t: {{path: t}}\n  d: {{path: d}}\n{head}queries:\n"
    for name in names:
        text += f'  {name}: {{sql: "{QUERIES[name]}", answer: true, policy: incremental}}\n'
    file = folder / "w.yaml"
    file.write_text(text + "store: .impctl\n")
    return file


Change = Callable[[Path], object]


def append(day: int | None, count: int, start: int = 0) -> Change:
    return lambda folder: write_deltalake(str(folder / "t"), rows(day, count, start), mode="append")


def delete(condition: str | None) -> Change:
    return lambda folder: DeltaTable(str(folder / "t")).delete(condition)


def day_of(day: int) -> str:
    return f"day = DATE '{FIRST + timedelta(days=day)}'"


CHANGES: dict[str, Change] = {
    "more of the latest day": append(5, 3, 1),
    "a later day": append(6, 4),
    "the same rows again": append(6, 4),
    "some of an early day": append(1, 2),
    "part of the latest day goes": delete(f"{day_of(6)} AND g = 0"),
    "the latest day goes": delete(day_of(6)),
    "and the one before": delete(day_of(5)),
    "rows without a day": append(None, 3),
    "a much later day": append(60, 2),
    "the first day goes": delete(day_of(0)),
    "values move": lambda folder: DeltaTable(str(folder / "t")).update(
        updates={"x": "x + 3"}, predicate="g = 1"
    ),
    "days alone are left": delete("day IS NOT NULL"),
    "days come again": append(3, 5),
    "all goes": delete(None),
    "something comes": append(2, 4),
}


def answers(cli: Cli, names: Sequence[str]) -> dict[str, Counter[tuple[str, ...]]]:
    """The answers that lie in the store, as texts."""
    return {
        name: Counter(
            tuple(map(str, row))
            for row in cli.one("query", "--query", name, "--by", "state")["rows"]
        )
        for name in names
    }


def wanted(folder: Path, names: Sequence[str]) -> dict[str, Counter[tuple[str, ...]]]:
    with duck() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for table in ("t", "d"):
            connection.register(table, DeltaTable(str(folder / table)).to_pyarrow_table())
        return {
            name: Counter(
                tuple(map(str, row)) for row in connection.execute(QUERIES[name]).fetchall()
            )
            for name in names
        }


@pytest.mark.parametrize(
    ("budget", "names"),
    [
        ("", ("latest", "hours", "named")),
        pytest.param("budget: {disk: 0MB}\n", tuple(QUERIES), marks=pytest.mark.slow),
    ],
)
def test_a_latest_day_that_moves_is_followed(
    tmp_path: Path, capsys: Capsys, budget: str, names: Sequence[str]
) -> None:
    cli = Cli(capsys, write_workload(tmp_path, budget, names))
    assert {result["mode"] for result in cli("capture").results} == {"exact"}
    assert answers(cli, names) == wanted(tmp_path, names)
    for what, change in CHANGES.items():
        change(tmp_path)
        assert {result["action"] for result in cli("maintain").results} == {"exact"}, what
        assert answers(cli, names) == wanted(tmp_path, names), what


def test_no_row_of_the_table_is_kept(tmp_path: Path, capsys: Capsys) -> None:
    cli = Cli(capsys, write_workload(tmp_path, names=["latest", "since", "hours", "rows"]))
    cli.good("capture")
    for result in cli.good("explain").results:
        (side,) = result["joins"]
        assert (side["strategy"], side["tables"]) == ("files", ["t"])
        assert stored(tmp_path, result["query"]).state_meta["from_files"] == [side["side"]]


def test_join_index_keeps_the_rows(tmp_path: Path, capsys: Capsys) -> None:
    cli = Cli(capsys, write_workload(tmp_path, names=["latest"]))
    cli.edit("answer: true", "answer: true, join: index")
    cli.good("capture")
    (result,) = cli.good("explain").results
    assert {side["strategy"] for side in result["joins"]} == {"index"}
    append(6, 4)(tmp_path)
    cli.good("maintain")
    assert answers(cli, ["latest"]) == wanted(tmp_path, ["latest"])


def test_files_that_hold_no_row_that_moves_are_not_opened(tmp_path: Path, capsys: Capsys) -> None:
    cli = Cli(capsys, write_workload(tmp_path, names=["latest", "since", "hours"]))
    cli.good("capture")
    for uri in DeltaTable(str(tmp_path / "t"), version=2).file_uris():
        Path(uri).unlink()
    append(6, 4)(tmp_path)
    assert {result["action"] for result in cli.good("maintain").results} == {"exact"}
    assert answers(cli, ["latest"])["latest"] == Counter(
        {("0", "3", "2"): 1, ("1", "1", "1"): 1, ("2", "2", "1"): 1}
    )

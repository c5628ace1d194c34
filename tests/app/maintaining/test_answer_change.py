"""`answer_changed: no` is never said of an answer that changed, and said of most that did not.

The answers are computed by plain Python over all rows, columns that only go out included.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.random_cases import random_cases
from tests.support.run_cli import CliOf

Row = tuple[int, int | None, int, str]
GROUPS, HEAVY = 60, 8


def _groups(rows: list[Row]) -> dict[int, list[Row]]:
    result = defaultdict(list)
    for row in rows:
        result[row[0]].append(row)
    return result


def having(rows: list[Row]) -> Any:
    return sorted(
        (g, sum(x for _, _, x, _ in own), max(name for *_, name in own))
        for g, own in _groups(rows).items()
        if sum(x for _, _, x, _ in own) > 400
    )


def filtered(rows: list[Row]) -> Any:
    return sorted((g, x, name) for g, h, x, name in rows if h is not None and h > 90)


def counted(rows: list[Row]) -> Any:
    return sorted((g, len(own)) for g, own in _groups(rows).items() if len(own) < 3 and g > 40)


def best(rows: list[Row]) -> Any:
    """Ties at the last place leave several answers: all that any of them may have."""
    sums = [(sum(x for _, _, x, _ in own), g) for g, own in _groups(rows).items()]
    ordered = sorted(sums, reverse=True)
    return [pair for pair in ordered if pair[0] >= ordered[min(3, len(ordered)) - 1][0]]


def joined(rows: list[Row]) -> Any:
    """With itself: both accesses of the table are looked at."""
    heavy = {g for g, *_ in having(rows)}
    return sorted((g, name) for g, _, _, name in rows if g in heavy)


QUERIES: dict[str, tuple[str, Callable[[list[Row]], Any]]] = {
    "having": ("SELECT g, SUM(x), MAX(name) FROM t GROUP BY g HAVING SUM(x) > 400", having),
    "filtered": ("SELECT g, x, name FROM t WHERE h > 90", filtered),
    "counted": ("SELECT g, COUNT(*) FROM t WHERE g > 40 GROUP BY g HAVING COUNT(*) < 3", counted),
    "best": ("SELECT g, SUM(x) AS s FROM t GROUP BY g ORDER BY s DESC LIMIT 3", best),
    "joined": (
        "SELECT a.g, a.name FROM t a JOIN (SELECT g FROM t GROUP BY g HAVING SUM(x) > 400) b"
        " ON a.g = b.g",
        joined,
    ),
}


def drawn(rng: random.Random) -> Row:
    g = rng.randrange(GROUPS)
    x = rng.randint(50, 100) if g < HEAVY else rng.randint(0, 20)
    return g, rng.choice((None, rng.randrange(100))), x, rng.choice("abcdef")


def table_of(rows: list[Row]) -> pa.Table:
    names, kinds = ("g", "h", "x", "name"), (pa.int64(), pa.int64(), pa.int64(), pa.string())
    columns = zip(*rows, strict=True)
    return pa.table({n: pa.array(c, k) for n, c, k in zip(names, columns, kinds, strict=True)})


def changed(path: str, rng: random.Random) -> set[int]:
    """One random commit; the groups it says it is about."""
    g = rng.randrange(GROUPS)
    kind = rng.random()
    if kind < 0.45:
        rows = [drawn(rng) for _ in range(rng.randint(1, 3))]
        write_deltalake(path, table_of(rows), mode="append")
        return {row[0] for row in rows}
    if kind < 0.65:
        DeltaTable(path).delete(f"g = {g} AND x % 3 = {rng.randrange(3)}")
    elif kind < 0.85:
        # A column that only goes out: the circuit never sees it.
        DeltaTable(path).update(updates={"name": f"'{rng.choice('uvwxyz')}'"}, predicate=f"g = {g}")
    elif kind < 0.95:
        DeltaTable(path).update(updates={"x": f"x + {rng.choice((-5, 5))}"}, predicate=f"g = {g}")
    else:
        DeltaTable(path).optimize.compact()
    return {g}


@pytest.mark.slow
@random_cases(fast=8, check=19, total=300)
def test_no_is_never_wrong(tmp_path: Path, cli_of: CliOf, cases: range) -> None:
    rng, path = random.Random(len(cases)), str(tmp_path / "t")
    configuration = {"delta.enableChangeDataFeed": "true"}
    start = table_of([drawn(rng) for _ in range(300)])
    write_deltalake(path, start, configuration=configuration)
    listed = "".join(f'  {name}: {{sql: "{sql}"}}\n' for name, (sql, _) in QUERIES.items())
    cli = cli_of(
        "version: 1\ntables: {t: {path: t}}\npartitions: {t: {g: {ranges: 60}}}\n"
        f"queries:\n{listed}store: st\n"
    ).captured()

    def answers() -> tuple[dict[str, Any], set[int]]:
        rows = [tuple(row.values()) for row in DeltaTable(path).to_pyarrow_table().to_pylist()]
        match = {name: answer(rows) for name, (_, answer) in QUERIES.items()}  # type: ignore[arg-type]
        return match, {g for g, *_ in match["having"]}

    before, passing = answers()
    said = {"no": 0, "maybe": 0}
    others = others_said = 0
    for _ in cases:
        about = changed(path, rng)
        results = {r["query"]: r for r in cli.good("maintain").results}
        after, now = answers()
        for name, result in results.items():
            said[result["answer_changed"]] += 1
            if result["answer_changed"] == "no":
                assert after[name] == before[name], name
        if about.isdisjoint(passing | now):
            others += 1
            others_said += results["having"]["answer_changed"] == "no"
        before, passing = after, now
    assert said["no"]
    assert said["maybe"]
    assert others_said >= others / 2, (others_said, others)


@pytest.mark.slow
def test_another_column_may_be_another_answer(tmp_path: Path, cli_of: CliOf) -> None:
    """Without a changed row a column can become another: then nobody says `no`."""
    path = str(tmp_path / "t")
    write_deltalake(path, table_of([(g, 1, 100, "a") for g in range(10)]))
    cli = cli_of(
        "version: 1\ntables: {t: {path: t}}\nstore: st\n"
        'queries: {q: {sql: "SELECT g, SUM(x) FROM t GROUP BY g HAVING SUM(x) > 50"}}\n'
    ).captured()
    assert cli.good("maintain").results[0]["answer_changed"] == "no", "nothing is new"
    assert cli.good("maintain", "--dry-run").results[0]["answer_changed"] in (None, "no")
    wider = pa.table({"g": [99], "x": [1], "name": ["b"], "more": [1]})
    write_deltalake(path, wider, mode="append", schema_mode="merge")
    assert cli.good("maintain").results[0]["answer_changed"] == "maybe"

"""The attribute by estimate: twelve pairs of table and query against trying every attribute.

Files left by the choice are at most 1.2 times those of the best safe attribute in each pair. What
was foreseen is within a quarter of what came in ten of the twelve, and what came within what was
said to be possible in eleven (decision 0043).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.tables.write.maintenance import create_laid_out_table
from tests.support.run_cli import Cli

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROWS = 2_000_000
GROUPS = ROWS // 100


def columns(order: str) -> dict[str, np.ndarray]:
    """Rows of sales: customers have a hot tenth, days and orders go up together."""
    random = np.random.default_rng(7)
    at = np.arange(ROWS)
    day = at * 365 // ROWS
    result = {
        "id": at,
        "day": day,
        "orderkey": at // 100 + random.integers(0, 3, ROWS),
        "customer": random.integers(0, GROUPS, ROWS),
        "region": random.integers(0, 50, ROWS),
        "price": random.gamma(2.0, 50.0, ROWS).astype(np.int64),
    }
    # What sells in a day goes up at the end of the year, and some customers buy for more.
    result["price"] += (day > 330) * 100 + (result["customer"] < GROUPS // 50) * 120
    if order == "random":
        placed = random.permutation(ROWS)
    elif order == "nearly":
        placed = np.argsort(at + random.integers(-ROWS // 100, ROWS // 100, ROWS), kind="stable")
    elif order == "customer":
        placed = np.argsort(result["customer"], kind="stable")
    elif order == "two":
        zone = (result["customer"] * 20 // GROUPS) * 20 + day * 20 // 366
        placed = np.argsort(zone, kind="stable")
    else:
        placed = at
    return {name: values[placed] for name, values in result.items()}


def written(folder: Path, order: str, files: int) -> None:
    rows = pa.table(columns(order))
    size = -(-ROWS // files)
    parts = (rows.slice(at, size) for at in range(0, ROWS, size))
    create_laid_out_table(str(folder / f"{order}{files}"), parts)


PAIRS = [
    ("day", 400, "orderkey, SUM(price) AS s FROM t GROUP BY 1 HAVING SUM(price) > 19000"),
    (
        "day",
        2000,
        "customer, COUNT(*) AS n FROM t WHERE day > 349 GROUP BY 1 HAVING COUNT(*) > 3",
    ),
    ("day", 400, "day, SUM(price) AS s FROM t GROUP BY 1 HAVING SUM(price) > {day}"),
    ("nearly", 400, "orderkey, SUM(price) AS s FROM t GROUP BY 1 HAVING SUM(price) > 18500"),
    ("nearly", 2000, "region, orderkey, price FROM t WHERE price > 390 AND region = 7"),
    ("customer", 400, "customer, SUM(price) AS s FROM t GROUP BY 1 HAVING SUM(price) > 13000"),
    ("customer", 2000, "customer, SUM(price) AS s FROM t GROUP BY 1 ORDER BY s DESC LIMIT {top}"),
    ("customer", 400, "region, customer, price FROM t WHERE customer < {few} AND price > 200"),
    ("two", 400, "customer, SUM(price) AS s FROM t GROUP BY 1 HAVING SUM(price) > 15000"),
    ("two", 2000, "customer, day FROM t WHERE day > 330 GROUP BY 1, 2 HAVING SUM(price) > 600"),
    ("random", 400, "customer, SUM(price) AS s FROM t GROUP BY 1 HAVING SUM(price) > 15000"),
    ("day", 2000, "orderkey, SUM(price) AS s FROM t GROUP BY 1 ORDER BY s DESC LIMIT {top}"),
]


def test_twelve_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for order, files in sorted({(order, files) for order, files, _ in PAIRS}):
        written(tmp_path, order, files)
    near = inside = 0
    for number, (order, files, text) in enumerate(PAIRS):
        sql = "SELECT " + text.format(day=ROWS // 365 * 180, few=GROUPS // 40, top=GROUPS // 20)
        cli = Cli(capsys, workload(tmp_path, number, f"{order}{files}", sql))
        result = captured(cli, "q")
        entries = {c["attribute"]: c for c in result["considered"] if c["safe"]}
        mine = next(name for name, c in entries.items() if c["chosen"])
        foreseen = entries[mine]["expected"]
        left = {mine: files_left(result)}
        for other in entries:
            if other != mine:
                left[other] = files_left(captured(cli, f"q_{other}"))
        assert left[mine] <= 1.2 * min(left.values()), (sql, left)
        came = left[mine]
        assert foreseen is not None
        near += abs(foreseen["files"] - came) <= came / 4
        inside += foreseen["files_low"] <= came <= foreseen["files_high"]
    assert near >= 10  # noqa: PLR2004
    assert inside >= 11  # noqa: PLR2004


ATTRIBUTES = ("id", "day", "orderkey", "customer", "region", "price")


def workload(folder: Path, number: int, table: str, sql: str) -> Path:
    file = folder / f"w{number}.yaml"
    queries = "".join(f'  q_{a}: {{sql: "{sql}", sketch: {{t: {a}}}}}\n' for a in ATTRIBUTES)
    file.write_text(
        f'version: 1\ntables: {{t: {{path: {table}}}}}\nqueries:\n  q: {{sql: "{sql}"}}\n{queries}'
        f"store: store{number}\n"
    )
    return file


def captured(cli: Cli, query: str) -> dict[str, Any]:
    result: dict[str, Any] = cli.good("capture", "--query", query).results[0]
    return result


def files_left(result: dict[str, Any]) -> int:
    left: int = result["left"][0]["files"]
    return left

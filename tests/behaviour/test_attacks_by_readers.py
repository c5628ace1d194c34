"""Where readers of SQL differ: texts that impctl once understood in another way than Spark.

Law: such a query is answered as Spark answers it, or refused by name; `verify --results` asks Spark
with the query as it is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli

pytestmark = pytest.mark.spark

TABLES = {
    "a": {"id": [1, 2], "x": [1, 2]},
    "b": {"id": [2, 3], "k": [1, 7]},
    "c": {"id": [1, 2, 3, 4, 5], "g": list("yyxxx"), "k": [1, 1, 9, 9, 9]},
    "r": {"id": [1, 2], "k": [1, 2], "x": [5, 5]},
    "s": {"k": ["1", "01", "2"], "y": [3, 4, 1], "p": [1, 2, 3]},
    "l": {"g": list("aabbb"), "x": [1, 1, 2, 2, 2]},
    "d": {"g": list("AAB"), "p": [1, 2, 1], "d": [10.0, float("nan"), 12.0]},
    "w": {"a": [1, 2, 1, 4], "id": [9, 3, 5, 7], "s": ["apple", "Avocado", "pear", "247"]},
    "v": {"id": [3, 9], "b": [1, 2]},
    "t": {"cmd": ["run !", "run ${x}", "run a"], "n": [5, 1, 1]},
}
WORKLOAD = """\
version: 1
tables: {{{tables}}}
partitions:
  a: {{id: {{boundaries: [2]}}}}
  c: {{g: {{boundaries: [y]}}}}
  r: {{id: {{boundaries: [2]}}}}
  v: {{id: {{boundaries: [4]}}}}
  s: {{p: {{boundaries: [2, 3]}}}}
  d: {{p: {{boundaries: [2]}}}}
  w: {{id: {{boundaries: [4, 6, 8]}}}}
  t: {{cmd: {{boundaries: ["run $${{x}}"]}}}}
queries:
{queries}
spark: {{master: "local[2]"}}
"""


READ: list[tuple[str, str, list[Any]]] = [
    (
        "SELECT c.g, COUNT(*) n FROM a CROSS JOIN b RIGHT JOIN c ON b.k = c.k"
        " GROUP BY c.g ORDER BY n DESC, c.g LIMIT 1",
        "{c: g}",
        [["y", 4]],
    ),
    (
        "SELECT id FROM r WHERE x < (SELECT SUM(y) FROM s WHERE CAST(s.k AS INT) = r.k)",
        "{r: id}",
        [[1]],
    ),
    (
        "SELECT id FROM a UNION ALL SELECT id FROM b INTERSECT SELECT id FROM c",
        "{a: id}",
        [[1], [2], [2], [3]],
    ),
    ("SELECT id FROM w WHERE s NOT ILIKE 'a%'", "{w: id}", [[5], [7]]),
    ("SELECT id FROM w WHERE s = '\\\\247'", "{w: id}", [[7]]),
    ("SELECT p FROM s WHERE +k = '1'", "{s: p}", [[1], [2]]),
    ("SELECT p FROM s WHERE k IN (+'1')", "{s: p}", [[1], [2]]),
    ("SELECT id FROM w ORDER BY (1) LIMIT 1", "{w: id}", [[3]]),
    (
        "SELECT * FROM w LEFT SEMI JOIN v USING (id) ORDER BY 1 LIMIT 1",
        "{w: id}",
        [[3, 2, "Avocado"]],
    ),
    ("SELECT w.* FROM w JOIN v USING (id) ORDER BY 1 LIMIT 1", "{w: id}", [[3, 2, "Avocado"]]),
    (
        "SELECT v.*, w.* FROM w RIGHT JOIN v USING (id) ORDER BY 1 LIMIT 1",
        "{v: id}",
        [[3, 1, 3, 2, "Avocado"]],
    ),
    ("SELECT cmd FROM t WHERE n > 2", "{t: cmd}", [["run !"]]),
    ("SELECT cmd FROM t WHERE cmd LIKE 'run $%' AND n < 2", "{t: cmd}", [["run ${x}"]]),
]
"""Queries, their sketch, and the rows Spark gives."""


@pytest.fixture
def opened(tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: Any) -> Any:
    def open_with(*queries: tuple[str, str]) -> Cli:
        for name, columns in TABLES.items():
            create_table(str(tmp_path / name), pa.table(columns))
        tables = ", ".join(f"{name}: {{path: {name}}}" for name in TABLES)
        lines = [
            f'  q{number}: {{sql: "{sql}", sketch: {sketch}}}'
            for number, (sql, sketch) in enumerate(queries)
        ]
        text = WORKLOAD.format(tables=tables, queries="\n".join(lines))
        return Cli.over(capsys, tmp_path, text)

    return open_with


def test_read_as_spark_reads_it(opened: Any) -> None:
    cli = opened(*(query[:2] for query in READ))
    cli.good("capture")
    cli.verified(is_exact=False)
    for number, (sql, _, rows) in enumerate(READ):
        (answer,) = cli.good("query", "--query", f"q{number}").results
        assert sorted(answer["rows"]) == rows, sql


@pytest.mark.parametrize(
    ("sql", "sketch", "code"),
    [
        (
            "SELECT c.g, COUNT(*) n FROM a, b RIGHT JOIN c ON b.k = c.k GROUP BY c.g"
            " ORDER BY n DESC, c.g LIMIT 1",
            "{c: g}",
            "query_unsupported",
        ),
        (
            "SELECT id FROM r WHERE x < (SELECT SUM(y) FROM s WHERE s.k = r.k)",
            "{r: id}",
            "query_unsupported",
        ),
        (
            "SELECT g, COUNT(*) c FROM l WHERE x IN (SELECT k FROM s) GROUP BY g"
            " ORDER BY c DESC, g LIMIT 1",
            "{s: p}",
            "capture_unsupported",
        ),
        (
            "SELECT g FROM d GROUP BY g HAVING CAST(MAX(d) AS DECIMAL(10, 2)) > 5",
            "{d: p}",
            "sketch_unsafe",
        ),
    ],
)
def test_refused_by_name(opened: Any, sql: str, sketch: str, code: str) -> None:
    ran = opened((sql, sketch))("capture")
    assert (ran.code, ran.error["code"]) == (3, code)

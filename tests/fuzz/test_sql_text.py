"""SQL of any content: read as a query, or refused at a place with a hint.

By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 240 and 300 cases.
"""

from __future__ import annotations

import random
from pathlib import Path

import yaml
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError

from impctl.errors import ImpctlError
from impctl.rules.optimize import apply_rules
from impctl.sql.statement import parse_query
from impctl.tables.write.maintenance import create_table
from tests.fuzz.bounded import in_time, told
from tests.plan.test_against_spark import CATALOG, QUERIES
from tests.support.random_cases import random_cases
from tests.support.run_cli import Capsys, Cli
from tests.support.small_workload import ROWS, WORKLOAD

ODD = (
    *"'\"`;()[]{}<>,.*/+-=!&|^~%$#@:?\\",
    "--",
    "/*",
    "*/",
    "/*+ BROADCAST(t) */",
    "\u2018",
    "\uff07",
    "\u00a0",
    "\u202e",
    "\x00",
    "\n",
    "\r",
    "🧨",
    "ﬀ",
    "0x",
    "1e",
    "1e999",
    "9" * 400,
    "1BD",
    "X'0'",
    "r'x'",
    "$$x$$",
    ":p",
    "${x}",
    "INTERVAL",
    "OVER ()",
    "WITH",
    "LATERAL",
    "CASE",
    "END",
    "NULL",
    "VALUES",
    "DATE ''",
    "CAST(",
    "x -> x",
)
NESTED = (("(", ")"), ("NOT ", ""), ("- ", ""), ("abs(", ")"), ("a + ", ""), ("CASE WHEN ", ""))


def words_of(sql: str) -> list[str]:
    try:
        return [sql[token.start : token.end + 1] for token in Spark().tokenize(sql)]
    except TokenError:
        return sql.split()


def changed_sql(seed: int, queries: list[str]) -> str:
    """A query with words exchanged for those of others, doubled, dropped, nested or cut."""
    draw = random.Random(seed)
    words = words_of(draw.choice(queries))
    for _ in range(draw.choice((1, 1, 2, 3, 10))):
        place = draw.randrange(len(words) + 1)
        other = words_of(draw.choice(queries))
        match draw.randrange(8):
            case 0:
                del words[place : place + draw.choice((1, 1, 4))]
            case 1:
                words.insert(place, draw.choice(other))
            case 2:
                words[place : place + 1] = [draw.choice(other)]
            case 3:
                words.insert(place, draw.choice(ODD))
            case 4:
                start = draw.randrange(len(other))
                words[place:place] = other[start : start + draw.choice((2, 5, 30))]
            case 5:
                words[place:place] = ["(", *other, ")"]
            case 6:
                words = [*words, draw.choice(("UNION ALL", "EXCEPT", ",", ";", "JOIN")), *other]
            case _:
                opening, closing = draw.choice(NESTED)
                depth = draw.choice((3, 30, 300, 3000)) if draw.random() < 0.2 else 3
                words[place : place + 1] = [
                    opening * depth + "".join(words[place : place + 1]) + closing * depth
                ]
    return draw.choice((" ", " ", "\n")).join(words)


def refusal_of(sql: str) -> ImpctlError | None:
    """What is said of the text; None where it is a query."""
    try:
        apply_rules(parse_query(sql, CATALOG).root)
    except ImpctlError as error:
        return error
    return None


def test_with_entries_that_double() -> None:
    """2 to the 40th tables, in a text of a few lines."""
    entries = ["c0 AS (SELECT a FROM t)"]
    entries += [
        f"c{n} AS (SELECT x.a FROM c{n - 1} x JOIN c{n - 1} y ON x.a = y.a)" for n in range(1, 41)
    ]
    with in_time("doubling"):
        error = refusal_of(f"WITH {', '.join(entries)} SELECT a FROM c40")
    assert error is not None
    assert "tables" in error.message


@random_cases(34, 57, 500)
def test_parsed_or_refused(cases: range) -> None:
    read = 0
    for seed in cases:
        sql = changed_sql(seed, QUERIES)
        with in_time(f"seed {seed}: {sql[:500]}"):
            error = refusal_of(sql)
        read += error is None
        if error is not None:
            assert error.hint, (seed, sql, error)
            assert "\n" not in error.message, (seed, error)
            assert error.location is not None, (seed, error)
    assert read > len(cases) / 50


OWN = [
    "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING COUNT(*) > 2",
    "SELECT x, MAX(g) AS m, MIN(note) FROM t WHERE note LIKE 'a%' GROUP BY x HAVING MAX(g) > 3",
    "SELECT g, x FROM t ORDER BY x DESC, g LIMIT 3",
    "SELECT a.g, SUM(b.x) FROM t a JOIN t b ON a.g = b.g WHERE a.x > 3 GROUP BY a.g",
    "WITH c AS (SELECT g, AVG(x) AS v FROM t GROUP BY g) SELECT g FROM c WHERE v > 10",
    "SELECT g FROM t WHERE x IN (SELECT MAX(x) FROM t GROUP BY note)",
    "SELECT DISTINCT g, CASE WHEN x > 5 THEN 'a' ELSE note END AS k FROM t",
    "SELECT g FROM t UNION SELECT x FROM t",
    "SELECT g, rank() OVER (PARTITION BY note ORDER BY x) AS r FROM t",
]


@random_cases(2, 5, 24, also="16", all_when_long=True)
def test_through_the_command_line(cases: range, tmp_path: Path, capsys: Capsys) -> None:
    create_table(str(tmp_path / "t"), ROWS)
    cli = Cli(capsys, tmp_path / "w.yaml")
    document = yaml.safe_load(WORKLOAD.replace("POLICY", "auto"))
    codes = []
    for seed in cases:
        sql = changed_sql(seed, OWN)
        document["queries"]["q"] = {"sql": sql}
        cli.workload.write_text(yaml.safe_dump(document))
        for command in ("check", "explain", "plan"):
            codes.append(told(cli, command, what=f"seed {seed}: {sql[:500]}").code)
        told(cli, "rewrite", f"--sql={sql}", what=f"seed {seed}: {sql[:500]}")
    assert codes.count(0) > len(codes) / 50


@random_cases(3, 6, 30, also="28", all_when_long=True)
def test_update_batches(cases: range, tmp_path: Path, capsys: Capsys) -> None:
    """`where` and `set` by the same words; prepared, not committed."""
    create_table(str(tmp_path / "t"), ROWS)
    cli = Cli(capsys, tmp_path / "w.yaml")
    document = yaml.safe_load(WORKLOAD.replace("POLICY", "auto"))
    texts = ["g > 3 AND note = 'a'", "x + 1", "x IS NULL OR NOT g = 5", "abs(x) * 2 > g", *OWN[:1]]
    codes = []
    for seed in cases:
        text = changed_sql(seed, texts)
        change = {"table": "t", "set": {"x": text if seed % 3 else "x"}}
        if seed % 3 != 1:
            change["where"] = text
        delete = {"table": "t", "where": text}
        batch = {"update": change} if seed % 2 else {"delete": delete}
        document["updates"] = [{"name": "u", **batch}]
        cli.workload.write_text(yaml.safe_dump(document))
        codes.append(told(cli, "apply", "u", "--dry-run", what=f"seed {seed}: {text[:500]}").code)
    assert codes.count(0) > len(codes) / 100

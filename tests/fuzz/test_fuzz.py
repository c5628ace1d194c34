"""Random SQL, workload files and stored state: handled, or refused with a clear error."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError

from impctl.cli.application import EXIT_CODES, build_app
from impctl.cli.boundary import run
from impctl.errors import ImpctlError
from impctl.rules.optimize import apply_rules
from impctl.sql.statement import parse_query
from impctl.tables.write.maintenance import create_table
from tests.outside.conftest import FEED
from tests.plan.test_recursion import CATALOG, SPARK_QUERIES
from tests.support.random_cases import random_cases
from tests.support.run_cli import ROWS, WORKLOAD, Capsys, Cli, Ran

SECONDS = 60.0
"""The time limit of one call, hundreds of times what it takes."""

CODES = {code for code, _ in EXIT_CODES} - {1}


class OverTimeError(BaseException):
    """Not an Exception, so that the code under test does not catch it."""


@contextmanager
def in_time(label: str, seconds: float = SECONDS) -> Iterator[None]:
    """Raise OverTimeError if the block takes longer."""

    def expire(number: int, frame: FrameType | None) -> None:
        raise OverTimeError(label)

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_handled(ran: Ran, label: str) -> Ran:
    """Check that the call succeeded or failed with a proper error."""
    assert ran.code in CODES, (label, ran.document)
    assert ran.document["ok"] == (ran.code == 0), (label, ran.document)
    if ran.code:
        error = ran.error
        assert error["code"] != "unexpected", (label, error)
        assert error["message"].strip(), (label, error)
        assert "\n" not in error["message"], (label, error)
        # Every error has a hint, with several problems and with invalid YAML too.
        assert error["hint"], (label, error)
    return ran


def run_checked(cli: Cli, command: str, *arguments: str, label: str = "") -> Ran:
    """Run `command` within the time limit and check its outcome."""
    label = f"{command}: {label}"
    with in_time(label):
        ran = cli(command, *arguments)
    return check_handled(ran, label)


ODD_TEXTS = (
    *("", " ", "\u202e\u200b", "\x00", "\ud800", "\ufeff", "é" * 70, "ﷺ" * 300, "🧨", "a" * 5000),
    *("${", "${HOME", "${A:-${B}}", "$${A}", "${NOT_SET_ANYWHERE}", "`t`", "'; DROP TABLE t; --"),
    *("../../../etc/passwd", "/dev/zero", "s3://", "file://\x01", "http://[::1", "%20", "nul"),
    *("SELECT", "(" * 400, "SELECT g FROM t WHERE " + "NOT " * 600 + "TRUE"),
)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 1e308, float("inf")),
    *(float("nan"), 0.1, [], {}, [[]], [None], {"": ""}, {"t": None}, [{"name": None}]),
)
ODD_PLAIN = (
    *("0x1F", "1_000", "1:30:00", "~", "yes", "2024-02-30", "2024-01-01T00:00:00+99:00"),
    *("!!binary aGk=", "!!python/object/apply:os.system [echo]", "!!set {a, b}", "!!omap [a: 1]"),
    *("!!timestamp x", "!<tag:x> y", "&a *a", "&a [*a]", "*nowhere", "<<: *x"),
    *("{<<: {version: 2}}", "{<<: [1, 2]}", "? [a, b]", "? {a: b}\n: c", "|\n  x", ">-\n"),
    *("1e999999", "9" * 5000, "0." + "1" * 400, "-.inf", "@x", "%TAG ! x", "--- {}\n--- {}", "..."),
)
KEYS = ("tables", "queries", "t", "q", "g", "sql", "sketch", "params", "where", "name", "version")


def changed(seed: int, valid: str) -> str:
    """The mutated text of this seed."""
    draw = random.Random(seed)
    if seed % 2:
        tree = yaml.safe_load(valid)
        for _ in range(draw.choice((1, 1, 1, 2, 5))):
            tree = _other_tree(draw, tree)
        if draw.random() < 0.1:
            tree = _nested(draw, tree)
        text = yaml.dump(tree, sort_keys=False, allow_unicode=draw.random() < 0.5)
        return _with_expanding_aliases(draw, text) if draw.random() < 0.05 else text
    text = valid
    for _ in range(draw.choice((1, 1, 2, 8))):
        text = _other_text(draw, text)
    return text


def _other_tree(draw: random.Random, tree: Any) -> Any:
    """The tree with one change at a random depth."""
    if not isinstance(tree, dict | list) or not tree or draw.random() < 0.15:
        return _replacement(draw, tree)
    if isinstance(tree, list):
        index = draw.randrange(len(tree))
        new = [*tree]
        match draw.randrange(5):
            case 0:
                del new[index]
            case 1:
                new.append(tree[index])
            case _:
                new[index] = _other_tree(draw, tree[index])
        return new
    key = draw.choice(list(tree))
    result = dict(tree)
    match draw.randrange(7):
        case 0:
            del result[key]
        case 1:
            result[_key(draw)] = result.pop(key)
        case 2:
            result[_key(draw)] = tree[key]
        case _:
            result[key] = _other_tree(draw, tree[key])
    return result


def _key(draw: random.Random) -> Any:
    return draw.choice((*KEYS, *ODD_TEXTS[:12], 1, None, True, 1.5, "T", "Q", "ſketch"))


def _replacement(draw: random.Random, old: Any) -> Any:
    match draw.randrange(5):
        case 0:
            return draw.choice(ODD_TEXTS)
        case 1 if isinstance(old, str) and old:
            cut = draw.randrange(len(old))
            return old[:cut] + draw.choice(ODD_TEXTS) + old[cut:]
        case 2:
            return [old] if draw.random() < 0.5 else {"t": old}
        case 3:
            return str(old)
        case _:
            return draw.choice(ODD_VALUES)


def _nested(draw: random.Random, tree: Any) -> Any:
    for _ in range(draw.choice((20, 45, 200))):
        tree = [tree] if draw.random() < 0.5 else {"queries": tree}
    return tree


def _with_expanding_aliases(draw: random.Random, text: str) -> str:
    levels = draw.choice((5, 12, 30))
    lines = ["l0: &l0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    for level in range(1, levels):
        lines.append(f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 9)}]")
    return "\n".join(lines) + "\n" + text


def _other_text(draw: random.Random, text: str) -> str:
    lines = text.split("\n")
    number = draw.randrange(len(lines))
    line = lines[number]
    position = draw.randrange(len(text)) if text else 0
    match draw.randrange(9):
        case 0:
            lines.insert(number, line)
        case 1:
            del lines[number]
        case 2:
            lines[number] = " " * draw.randrange(4) + line.lstrip()
        case 3:
            lines[number] = line.partition(":")[0] + ": " + draw.choice(ODD_PLAIN)
        case 4:
            lines[number] = line.partition(":")[0] + ": " + draw.choice("[{'\"|>&*!%@`")
        case 5:
            return text[:position] + text[position + draw.choice((1, 3, 40)) :]
        case 6:
            return text[:position] + draw.choice((*ODD_TEXTS[:18], *"\t\r{}[]:,#&*!|>'\"%@`-?"))
        case 7:
            odd = draw.choice((*ODD_TEXTS[:12], *"\t\r{}[]:,#&*!|>'\"%@`-?"))
            return text[:position] + odd + text[position:]
        case _:
            depth = draw.choice((30, 41, 3000))
            lines[number] = line.partition(":")[0] + ": " + "[" * depth + "]" * depth
    return "\n".join(lines)


ODD = (
    *"'\"`;()[]{}<>,.*/+-=!&|^~%$#@:?\\",
    *("--", "/*", "*/", "/*+ BROADCAST(t) */", "\u2018", "\uff07", "\u00a0", "\u202e", "\x00"),
    *("\n", "\r", "🧨", "ﬀ", "0x", "1e", "1e999", "9" * 400, "1BD", "X'0'", "r'x'", "$$x$$", ":p"),
    *("${x}", "INTERVAL", "OVER ()", "WITH", "LATERAL", "CASE", "END", "NULL", "VALUES", "DATE ''"),
    *("CAST(", "x -> x"),
)
NESTED = (("(", ")"), ("NOT ", ""), ("- ", ""), ("abs(", ")"), ("a + ", ""), ("CASE WHEN ", ""))


def tokens_of(sql: str) -> list[str]:
    try:
        return [sql[token.start : token.end + 1] for token in Spark().tokenize(sql)]
    except TokenError:
        return sql.split()


def changed_sql(seed: int, queries: list[str]) -> str:
    """A query with tokens replaced by those of other queries, inserted, deleted or nested."""
    draw = random.Random(seed)
    words = tokens_of(draw.choice(queries))
    for _ in range(draw.choice((1, 1, 2, 3, 10))):
        position = draw.randrange(len(words) + 1)
        other = tokens_of(draw.choice(queries))
        match draw.randrange(8):
            case 0:
                del words[position : position + draw.choice((1, 1, 4))]
            case 1:
                words.insert(position, draw.choice(other))
            case 2:
                words[position : position + 1] = [draw.choice(other)]
            case 3:
                words.insert(position, draw.choice(ODD))
            case 4:
                start = draw.randrange(len(other))
                words[position:position] = other[start : start + draw.choice((2, 5, 30))]
            case 5:
                words[position:position] = ["(", *other, ")"]
            case 6:
                words = [*words, draw.choice(("UNION ALL", "EXCEPT", ",", ";", "JOIN")), *other]
            case _:
                opening, closing = draw.choice(NESTED)
                depth = draw.choice((3, 30, 300, 3000)) if draw.random() < 0.2 else 3
                words[position : position + 1] = [
                    opening * depth + "".join(words[position : position + 1]) + closing * depth
                ]
    return draw.choice((" ", " ", "\n")).join(words)


def refusal_of(sql: str) -> ImpctlError | None:
    """The error of the SQL; None if it is a valid query."""
    try:
        apply_rules(parse_query(sql, CATALOG).root)
    except ImpctlError as error:
        return error
    return None


def test_exponential_with_entries() -> None:
    """A few lines of SQL that expand to 2^40 tables."""
    entries = ["c0 AS (SELECT a FROM t)"]
    entries += [
        f"c{n} AS (SELECT x.a FROM c{n - 1} x JOIN c{n - 1} y ON x.a = y.a)" for n in range(1, 41)
    ]
    with in_time("doubling"):
        error = refusal_of(f"WITH {', '.join(entries)} SELECT a FROM c40")
    assert error is not None
    assert "tables" in error.message


@random_cases(34, 57, 500)
def test_random_sql(cases: range) -> None:
    parsed = 0
    for seed in cases:
        sql = changed_sql(seed, SPARK_QUERIES)
        with in_time(f"seed {seed}: {sql[:500]}"):
            error = refusal_of(sql)
        parsed += error is None
        if error is not None:
            assert error.hint, (seed, sql, error)
            assert "\n" not in error.message, (seed, error)
            assert error.location is not None, (seed, error)
    assert parsed > len(cases) / 50


COMMAND_QUERIES = [
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
def test_random_sql_in_commands(cases: range, tmp_path: Path, capsys: Capsys) -> None:
    create_table(str(tmp_path / "t"), ROWS)
    cli = Cli(capsys, tmp_path / "w.yaml")
    document = yaml.safe_load(WORKLOAD.replace("POLICY", "auto"))
    codes = []
    for seed in cases:
        sql = changed_sql(seed, COMMAND_QUERIES)
        document["queries"]["q"] = {"sql": sql}
        cli.workload.write_text(yaml.safe_dump(document))
        for command in ("check", "explain", "plan"):
            codes.append(run_checked(cli, command, label=f"seed {seed}: {sql[:500]}").code)
        run_checked(cli, "rewrite", f"--sql={sql}", label=f"seed {seed}: {sql[:500]}")
    assert codes.count(0) > len(codes) / 50


@random_cases(3, 6, 30, also="28", all_when_long=True)
def test_update_batches(cases: range, tmp_path: Path, capsys: Capsys) -> None:
    """`where` and `set` get the same mutated text. Updates are prepared, not committed."""
    create_table(str(tmp_path / "t"), ROWS)
    cli = Cli(capsys, tmp_path / "w.yaml")
    document = yaml.safe_load(WORKLOAD.replace("POLICY", "auto"))
    texts = [
        "g > 3 AND note = 'a'",
        "x + 1",
        "x IS NULL OR NOT g = 5",
        "abs(x) * 2 > g",
        *COMMAND_QUERIES[:1],
    ]
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
        codes.append(
            run_checked(cli, "apply", "u", "--dry-run", label=f"seed {seed}: {text[:500]}").code
        )
    assert codes.count(0) > len(codes) / 100


FULL_WORKLOAD = """\
version: 1
name: all
tables:
  t: {path: t, storage_options: {timeout: 30s}}
partitions:
  t:
    g: {boundaries: [2, 4, 6]}
    x: {ranges: 4}
queries:
  q:
    sql: |
      SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t
      WHERE note <> :word GROUP BY g HAVING COUNT(*) > :low
    params: {low: 2, word: it's}
    sketch: {t: g}
    policy: auto
    maintain: lazy
    join: auto
    buffer: 100
  other: {sql: "SELECT x, MAX(g) FROM t GROUP BY x HAVING MAX(g) > 3"}
updates:
  - {name: new, insert: {table: t, rows: [{g: 1, x: 2, note: n}]}}
  - {name: old, delete: {table: t, where: "x = 5"}}
  - {name: set, update: {table: t, set: {x: "x + 1"}, where: "g = 3"}}
store: .impctl
spark: {master: "local[2]", conf: {spark.ui.enabled: false}}
"""
SHIPPED = sorted((Path(__file__).parents[2] / "workloads").rglob("*.yaml"))


def check_file(cli: Cli, text: str, label: str) -> int:
    cli.workload.write_bytes(text.encode("utf-8", "surrogatepass"))
    code = run_checked(cli, "check", label=label).code
    run_checked(cli, "status", label=label)
    if code == 0:
        run_checked(cli, "apply", "--all", "--dry-run", label=label)
    return code


@pytest.mark.slow
@random_cases(4, 16, 96, also="23", all_when_long=True)
def test_mutated_full_workload(cases: range, tmp_path: Path, capsys: Capsys) -> None:
    create_table(str(tmp_path / "t"), ROWS)
    cli = Cli(capsys, tmp_path / "w.yaml")
    assert check_file(cli, FULL_WORKLOAD, "as it is") == 0
    codes = [check_file(cli, changed(seed, FULL_WORKLOAD), f"seed {seed}") for seed in cases]
    assert codes.count(2) > len(codes) / 2
    assert codes.count(0) + codes.count(3) > len(codes) / 50


@random_cases(1, 3, 24)
def test_mutated_shipped_workloads(cases: range, tmp_path: Path, capsys: Capsys) -> None:
    """These include suites, whose data is missing, so nothing is measured."""
    cli = Cli(capsys, tmp_path / "w.yaml")
    for seed in cases:
        file = SHIPPED[seed % len(SHIPPED)]
        text = changed(seed // len(SHIPPED), file.read_text())
        cli.workload.write_bytes(text.encode("utf-8", "surrogatepass"))
        for command in ("check", "explain"):
            run_checked(cli, command, label=f"seed {seed}, {file.name}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"\xff\xfe" + "version: 1".encode("utf-16-le"),
        b"version: 1\n" * 90_000,
        b"[" * 900_000,
        b"{a: " * 200_000,
        b"- " * 400_000,
        b"? " * 400_000,
        b"a: &a [*a, *a]",
        b"\xed\xa0\x80",
        b"#" * 1_000_000,
        b"'" + b"x" * 1_000_000,
        b"version: " + b"9" * 1_000_000,
        b"".join(b"k%d: 1\n" % number for number in range(90_000)),
        b"!!" * 100_000,
        b"&a " * 100_000,
    ],
    ids=lambda content: repr(content[:16]),
)
def test_huge_workload_files(content: bytes, tmp_path: Path, capsys: Capsys) -> None:
    file = tmp_path / "w.yaml"
    file.write_bytes(content)
    ran = run_checked(Cli(capsys, file), "check", label=repr(content[:20]))
    assert ran.code == 2


GROUPS = 12_000
"""Enough that state is stored in files."""

COMMANDS = (
    *(("status",), ("plan",), ("explain",), ("rewrite", "--query", "q"), ("maintain", "--dry-run")),
    *(("gc", "--dry-run"), ("doctor",), ("maintain",), ("gc",), ("status",)),
)


@pytest.fixture(scope="module")
def store_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A captured store whose table has one further change."""
    folder = tmp_path_factory.mktemp("whole")
    numbers = [*range(GROUPS), 5, 5]
    rows = {"g": pa.array(numbers, pa.int64()), "x": pa.array([9] * len(numbers), pa.int64())}
    write_deltalake(str(folder / "t"), pa.table(rows), configuration=FEED)
    other = "  other: {sql: 'SELECT x, MAX(g) AS m FROM t GROUP BY x', sketch: {t: x}}\nstore:"
    text = WORKLOAD.replace("POLICY", "incremental").replace("store:", other)
    (folder / "w.yaml").write_text(text)
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        assert run(build_app(), ["capture", str(folder / "w.yaml")]) == 0
    assert len(list((folder / ".impctl" / "state").iterdir())) >= 1
    more = {"g": pa.array([7] * 3, pa.int64()), "x": pa.array([9] * 3, pa.int64())}
    write_deltalake(str(folder / "t"), pa.table(more), mode="append")
    return folder


def copy_store(store_folder: Path, folder: Path, capsys: Capsys) -> Cli:
    """Copy the store with its table and workload."""
    shutil.copytree(store_folder, folder)
    return Cli(capsys, folder / "w.yaml")


def damage_file(draw: random.Random, store: Path) -> str:
    """Damage one file. Returns a description."""
    files = sorted(path for path in store.rglob("*") if path.is_file())
    file = draw.choice(files)
    content = bytearray(file.read_bytes())
    length = len(content)
    method = draw.randrange(9)
    position = draw.randrange(length or 1)
    match method:
        case 0 if length:
            content[position] ^= 1 << draw.randrange(8)
        case 1:
            del content[position:]
        case 2:
            content += draw.randbytes(draw.choice((1, 100, 5000)))
        case 3 if length:
            other = draw.randrange(length)
            content[position], content[other] = content[other], content[position]
        case 4:
            content[position : position + 64] = draw.randbytes(64)
        case 5:
            content[position : position + 4096] = bytes(4096)
        case 6:
            content[:] = draw.choice(files).read_bytes()
        case 7:
            file.unlink()
            if draw.random() < 0.5:
                file.mkdir()
            return f"{file.name} taken away"
        case _:
            del content[position : position + draw.choice((1, 512))]
    file.write_bytes(content)
    return f"{file.name} ({length} bytes) changed in way {method} at {position}"


def damage_row(draw: random.Random, store: Path) -> str:
    """Damage a cell, row or table of the catalog. Returns a description."""
    connection = sqlite3.connect(store / "catalog.sqlite")
    try:
        table_names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        table = draw.choice(sorted(name for (name,) in table_names))
        columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
        column = draw.choice([name for _, name, *_ in columns])
        # Not all tables have a rowid.
        keys = ", ".join(name for _, name, *_, position in columns if position) or "rowid"
        result = connection.execute(f"SELECT {column}, {keys} FROM {table} ORDER BY {keys}")
        rows = result.fetchall()
        old = [value for value, *_ in rows]
        _, *key = draw.choice(rows or [(None,)])
        condition = f"({keys}) = ({', '.join('?' for _ in key)})"
        new = draw.choice(
            (None, "", "x", "é\0", b"", b"\xff", 0, -1, 2**62, 1.5, "{}", "[]", "[[1]]", "null")
        )
        if old and draw.random() < 0.3 and isinstance(value := draw.choice(old), str | bytes):
            new = value[: draw.randrange(len(value) + 1)]
        statement, values = draw.choice(
            (
                (f"UPDATE {table} SET {column} = ?", (new,)),
                (f"UPDATE {table} SET {column} = ?", (new,)),
                (f"UPDATE {table} SET {column} = ? WHERE {condition}", (new, *key)),
                (f"DELETE FROM {table}", ()),
                (f"DROP TABLE {table}", ()),
                (f"ALTER TABLE {table} RENAME COLUMN {column} TO other", ()),
                (f"PRAGMA user_version = {draw.choice((-1, 0, 1, 2, 99, 2**31 - 1))}", ()),
            )
        )
        connection.execute("PRAGMA foreign_keys = OFF")
        try:
            connection.execute(statement, values)
            connection.commit()
        except sqlite3.Error as error:
            return f"{statement} {values!r}: not done, {error}"
        return f"{statement} {values!r}"
    finally:
        connection.close()


@pytest.mark.slow
@random_cases(4, 8, 60)
def test_damaged_store(cases: range, store_folder: Path, tmp_path: Path, capsys: Capsys) -> None:
    refused = 0
    for seed in cases:
        draw = random.Random(seed)
        cli = copy_store(store_folder, tmp_path / str(seed), capsys)
        damage = damage_row if seed % 2 else damage_file
        description = damage(draw, cli.workload.parent / ".impctl")
        codes = [
            run_checked(cli, command, *rest, label=f"seed {seed}: {description}").code
            for command, *rest in COMMANDS
        ]
        refused += any(codes)
        shutil.rmtree(cli.workload.parent)
    assert refused > len(cases) / 4


@pytest.mark.slow
@random_cases(1, 4, 20)
def test_damaged_delta_log(
    cases: range, store_folder: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """The table's log and files belong to others and are not trusted either."""
    for seed in cases:
        draw = random.Random(seed)
        cli = copy_store(store_folder, tmp_path / str(seed), capsys)
        description = damage_file(draw, cli.workload.parent / "t")
        for command, *rest in COMMANDS:
            run_checked(cli, command, *rest, label=f"seed {seed}: {description}")
        shutil.rmtree(cli.workload.parent)

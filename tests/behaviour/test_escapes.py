"""SQL that tries to do more than ask: refused before Spark starts, or harmless as a literal.

Law: no text from a workload, `--sql`, `--param`, an update batch or a Python call reaches Spark or
deltalake unless it was read as a query or an expression over the workload's tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

import impctl
from impctl.errors import ImpctlError
from impctl.service import context
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli
from tests.support.small_workload import ROWS, WORKLOAD

STATEMENTS = [
    "DROP TABLE t",
    "INSERT INTO t VALUES (1, 1, 'x')",
    "INSERT OVERWRITE t SELECT * FROM t",
    "INSERT OVERWRITE DIRECTORY '/tmp/x' USING parquet SELECT * FROM t",
    "UPDATE t SET x = 1",
    "DELETE FROM t",
    "MERGE INTO t USING t AS s ON t.g = s.g WHEN MATCHED THEN DELETE",
    "TRUNCATE TABLE t",
    "CREATE TABLE c AS SELECT * FROM t",
    "CREATE OR REPLACE TEMPORARY VIEW t AS SELECT 1 AS g",
    "CREATE FUNCTION f AS 'java.lang.Runtime'",
    "ALTER TABLE t ADD COLUMNS (y INT)",
    "ADD JAR '/tmp/x.jar'",
    "SET spark.sql.ansi.enabled = false",
    "RESET",
    "USE other",
    "CACHE TABLE t",
    "REFRESH TABLE t",
    "OPTIMIZE t",
    "VACUUM t RETAIN 0 HOURS",
    "EXPLAIN SELECT g FROM t",
    "DESCRIBE t",
    "SHOW TABLES",
    "CALL system.x()",
    "EXECUTE IMMEDIATE 'DROP TABLE t'",
    "BEGIN DROP TABLE t; END",
    "DECLARE v = 1",
    "LOAD DATA INPATH '/tmp/x' INTO TABLE t",
    "COPY INTO t FROM '/tmp/x'",
    "GRANT SELECT ON t TO x",
    "TABLE t",
    "VALUES (1)",
    "FROM t INSERT INTO t SELECT g, x, note",
    "FROM t |> DROP g",
]
QUERIES = [
    "SELECT g INTO c FROM t",
    "WITH c AS (DELETE FROM t) SELECT * FROM c",
    "WITH c AS (INSERT INTO t VALUES (1, 1, 'x')) SELECT * FROM t",
    "WITH c AS (SELECT 1 AS g) INSERT INTO t SELECT g, g, 'x' FROM c",
    "WITH c AS (SELECT g FROM t) DELETE FROM t",
    "WITH c AS (INSERT INTO t VALUES (1, 1, 'x')) SELECT g FROM (SELECT g FROM t)",
    "SELECT g FROM (WITH c AS (DROP TABLE t) SELECT g FROM t)",
    "WITH c AS (SELECT * FROM parquet.`/etc/passwd`) SELECT g FROM t",
    "WITH c AS (SELECT reflect('java.lang.System', 'exit', 1) FROM t) SELECT g FROM t",
    "WITH `text./etc/passwd` AS (SELECT g FROM t) SELECT * FROM text.`/etc/passwd`",
    "WITH c AS (SELECT g FROM t), c AS (DELETE FROM t) SELECT g FROM c",
    "SELECT * FROM parquet.`/etc/passwd`",
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM delta.`/tmp/x`",
    "SELECT * FROM csv.'/etc/passwd'",
    "SELECT * FROM binaryFile.`/etc/passwd`",
    "SELECT t.g FROM t JOIN json.`/etc/passwd` p ON t.g = p.g",
    "SELECT g FROM t WHERE g IN (SELECT value FROM text.`/etc/passwd`)",
    "SELECT * FROM read_files('/etc/passwd')",
    "SELECT * FROM table_changes('t', 0)",
    "SELECT * FROM IDENTIFIER('t')",
    "SELECT IDENTIFIER('g') FROM t",
    "SELECT * FROM IDENTIFIER(:word)",
    "SELECT * FROM other_catalog.default.t",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM global_temp.t",
    "SELECT reflect('java.lang.System', 'exit', 1) FROM t",
    "SELECT java_method('java.lang.Runtime', 'getRuntime') FROM t",
    "SELECT try_reflect('java.lang.System', 'getenv') FROM t",
    "SELECT `reflect`('java.lang.System', 'exit', 1) FROM t",
    "SELECT g FROM t WHERE reflect('java.lang.System', 'getenv', 'HOME') = 'x'",
    "SELECT g FROM t GROUP BY g HAVING java_method('java.lang.System', 'lineSeparator') = 'x'",
    "SELECT TRANSFORM(g) USING 'cat /etc/passwd' AS (a) FROM t",
    "FROM t SELECT TRANSFORM(g) USING 'sh' AS (a)",
    "MAP g USING 'sh' FROM t",
    "SELECT g FROM t TIMESTAMP AS OF '2020-01-01'",
    "SELECT g FROM t@v0",
    "SELECT ${env:HOME} FROM t",
    "SELECT $g FROM t",
    "SELECT @@version FROM t",
    "SELECT g FROM t WHERE note = :word' OR 1=1 --",
    "SELECT g FROM t WHERE note = :`word`",
    "SELECT g FROM t WHERE :word",
    "SELECT :word(g) FROM t",
    "SELECT g FROM :word",
    "SELECT g FROM t WHERE note = :other",
    "SELECT g FROM t WHERE note = ?",
]
STACKED = [
    *(f"SELECT g FROM t{between}{statement}" for statement in STATEMENTS[:4] for between in
      ("; ", ";\n", " ;; ", "; -- c\n", "; /* c */ ", " /*;*/ ; ", "\n;\u00a0")),
    "SELECT g FROM t WHERE note = ''; DROP TABLE t; --'",
    "SELECT g FROM t WHERE note = '\\''; DROP TABLE t; --'",
    "SELECT g FROM t WHERE note = \u2018x\u2019; DROP TABLE t",
    "/* SELECT g FROM t */ DROP TABLE t",
    "-- SELECT g FROM t\nDROP TABLE t",
    "--\rSELECT g FROM t\rDROP TABLE t",
    "/*+ x */ DROP TABLE t",
    "/*! DROP TABLE t */ DROP TABLE t",
    "(SELECT g FROM t) DROP TABLE t",
    "(DROP TABLE t)",
    "((DELETE FROM t))",
    "SELECT (DELETE FROM t) FROM t",
]  # fmt: skip
ATTACKS = [*STATEMENTS, *QUERIES, *STACKED]

EXPRESSIONS = [
    "1 = 1; DROP TABLE t",
    "1 = 1); DELETE FROM t WHERE (1 = 1",
    "1 = 1 UNION SELECT 1 FROM t",
    "1 = 1 GROUP BY g",
    "1 = 1 LIMIT 1",
    "TRUE FROM t; DROP TABLE t",
    "g IN (SELECT g FROM t)",
    "g = (SELECT MAX(g) FROM t)",
    "EXISTS (SELECT 1 FROM parquet.`/etc/passwd`)",
    "reflect('java.lang.System', 'exit', 1) = 1",
    "java_method('java.lang.System', 'exit', 1) = 1",
    "IDENTIFIER('g') = 1",
    "note = 'x' -- ' AND FALSE; DROP TABLE t\n; DELETE FROM t",
    "note = ''; DROP TABLE t; --'",
    ":word = 'x'",
    "1; DROP TABLE t",
    "x FROM t, t",
    "x, 1",
    "*",
]
TEXTS = [
    "x' OR '1'='1",
    "x'; DROP TABLE t; --",
    "x\\' OR 1=1 --",
    "\\",
    "\\'; DELETE FROM t; --",
    '" OR ""="',
    "` OR `g` = `g",
    "\u2018 OR \u2019",
    "\uff07 OR \uff07\uff07=\uff07",
    "\u02bc; DROP TABLE t",
    "*/ DROP TABLE t /*",
    "--",
    ":word",
    ":low",
    "${spark.sql.ansi.enabled}",
    "$(id)",
    "\n; DROP TABLE t\n",
    "\r\n\t\b",
    "%' OR note LIKE '%",
    "reflect('java.lang.System','exit',1)",
]

NAMED = """\
SELECT g, note, x FROM t WHERE note = :word AND x >= :low"""


pytestmark = pytest.mark.filterwarnings("ignore::impctl.ImpctlWarning")


@pytest.fixture
def guarded(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A workload whose Spark can never start: whoever asks for it has let a text through."""

    def no_spark(*_: object) -> None:
        raise AssertionError("Spark was to start")

    monkeypatch.setattr(context.OwnSession, "open", no_spark)
    create_table(str(tmp_path / "t"), ROWS)
    cli = Cli(capsys, tmp_path / "w.yaml")
    write(cli, q={"sql": NAMED, "params": {"word": "a", "low": 2}})
    cli.good("capture")
    return cli


def write(cli: Cli, updates: tuple[dict[str, Any], ...] = (), **queries: dict[str, Any]) -> None:
    document = yaml.safe_load(WORKLOAD.replace("POLICY", "incremental"))
    document["queries"] = queries
    document["updates"] = list(updates)
    cli.workload.write_text(yaml.safe_dump(document))


def check_refused(cli: Cli, what: str, command: str, *arguments: str) -> None:
    ran = cli(command, *arguments)
    assert ran.code in (2, 3), (what, ran.document)
    error = ran.error
    assert error["code"] != "unexpected", (what, error)
    assert error["hint"], (what, error)
    assert "AssertionError" not in error["message"], (what, error)


@pytest.mark.slow
def test_queries_of_the_workload(guarded: Cli) -> None:
    for attack in ATTACKS:
        write(guarded, q={"sql": attack, "params": {"word": "t", "low": 2}})
        for command in ("check", "capture", "query"):
            check_refused(guarded, attack, command)


@pytest.mark.slow
def test_texts_on_the_command_line(guarded: Cli) -> None:
    for attack in ATTACKS:
        for command in ("rewrite", "query"):
            check_refused(guarded, attack, command, f"--sql={attack}")


def test_texts_of_python_calls(guarded: Cli) -> None:
    with impctl.open(guarded.workload) as workload:
        for attack in ATTACKS:
            for call in (workload.rewrite, workload.query, workload.dataframe):
                with pytest.raises(ImpctlError) as caught:
                    call(sql=attack)
                assert caught.value.exit_code in (2, 3), attack
                assert caught.value.hint, attack


@pytest.mark.slow
def test_batches_of_updates(guarded: Cli) -> None:
    version = DeltaTable(str(guarded.workload.parent / "t")).version()
    for text in EXPRESSIONS:
        batches = [{"delete": {"table": "t", "where": text}}]
        batches.append({"update": {"table": "t", "set": {"x": "1"}, "where": text}})
        batches.append({"update": {"table": "t", "set": {"x": text}}})
        for batch in batches:
            write(guarded, ({"name": "u", **batch},), q={"sql": "SELECT g FROM t"})
            check_refused(guarded, repr(batch), "apply", "u")
    for name in ("x = 1, g", "x`; DROP TABLE t", '"x"', "x\u00a0", "t.x"):
        change = {"table": "t", "set": {name: "1"}}
        write(guarded, ({"name": "u", "update": change},), q={"sql": "SELECT g FROM t"})
        check_refused(guarded, name, "apply", "u")
    assert DeltaTable(str(guarded.workload.parent / "t")).version() == version


def literal(sql: str) -> list[str]:
    """The strings in the text that Spark's own words would find, read by sqlglot's tokenizer."""
    from sqlglot.dialects.spark import Spark
    from sqlglot.tokens import TokenType

    return [token.text for token in Spark().tokenize(sql) if token.token_type is TokenType.STRING]


@pytest.mark.slow
def test_values_of_parameters_stay_values(guarded: Cli) -> None:
    """A text is one literal of the rewritten query, whatever it holds; a number takes no text."""
    plain = guarded.good("rewrite", "--param", "word=b").results[0]["sql"]
    for text in TEXTS:
        (result,) = guarded.good("rewrite", "--param", f"word={text}").results
        assert literal(result["sql"]) == [text], result["sql"]
        assert len(result["sql"]) < len(plain) + 8 * len(text)
        check_refused(guarded, text, "rewrite", "--param", f"low={text}")
        check_refused(guarded, text, "rewrite", "--param", f"{text}=1")
    for text in ("1 OR 1=1", "1;", "0x1", "1 --", "(1)", "1L", "NULL", "x", "\u0661"):
        check_refused(guarded, text, "query", "--param", f"low={text}")
    with impctl.open(guarded.workload) as workload:
        for text in TEXTS:
            assert literal(workload.rewrite(params={"word": text}).sql) == [text]
            for odd in (text, [text], {text: 1}, text.encode()):
                with pytest.raises(ImpctlError) as caught:
                    workload.rewrite(params={"low": odd})  # type: ignore[dict-item]
                assert caught.value.code == "parameter_type"

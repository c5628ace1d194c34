"""A place inside a query maps to the file: exactly, or to the start of the scalar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.workload.load import load_workload
from impctl.workload.yaml import sql_location
from tests.support.random_cases import FEW

from .conftest import Load

HEAD = "version: 1\ntables: {t: {path: p}}\nqueries:\n  q:\n"
SQL_LINES = st.lists(
    st.text(alphabet="SELECT abcä😀'\"\\,#:|", max_size=12).map(str.rstrip), min_size=1, max_size=5
)


def place(load: Load, sql: str, line: int, column: int, **env: str) -> tuple[int, int]:
    result = sql_location(load(HEAD + sql, env).queries["q"], line, column)
    assert result.file.endswith("w.yaml")
    return result.line, result.column


def check_every_character(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="")
    spec = load_workload(path, {}).queries["q"]
    file_lines = text.split("\n")
    for row, sql_line in enumerate(spec.sql.split("\n"), start=1):
        for column, character in enumerate(sql_line, start=1):
            result = sql_location(spec, row, column)
            assert file_lines[result.line - 1][result.column - 1] == character


@FEW
@given(lines=SQL_LINES, indent=st.integers(1, 4), header=st.sampled_from(["|", "|-", "| # note"]))
def test_every_character_of_a_literal_block(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], indent: int, header: str
) -> None:
    body = "".join(f"    {' ' * indent}{line}\n" if line else "\n" for line in ["x", *lines])
    path = tmp_path_factory.getbasetemp() / "literal.yaml"
    check_every_character(path, f"{HEAD}    sql: {header}\n{body}    policy: auto\n")


@FEW
@given(st.text(alphabet="SELECT abcä😀'\"\\,#:|\t", min_size=1, max_size=20))
def test_every_character_of_a_double_quoted_scalar(
    tmp_path_factory: pytest.TempPathFactory, sql: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "double.yaml"
    path.write_text(f"{HEAD}    sql: {json.dumps('x' + sql)}\n", encoding="utf-8")
    spec = load_workload(path, {}).queries["q"]
    assert spec.sql == "x" + sql
    line = path.read_text(encoding="utf-8").split("\n")[4]
    assert [line[sql_location(spec, 1, c + 1).column - 1] for c in range(len(spec.sql))] == [
        "\\" if json.dumps(c) != f'"{c}"' else c for c in spec.sql
    ]


@FEW
@given(st.text(alphabet="SELECT ab'\"\\,#:|", min_size=1, max_size=20))
def test_every_character_of_a_single_quoted_scalar(
    tmp_path_factory: pytest.TempPathFactory, sql: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "single.yaml"
    quoted = sql.replace("'", "''")
    check_every_character(path, f"{HEAD}    sql: 'x{quoted}'\n")


def test_a_plain_scalar(load: Load) -> None:
    assert place(load, "    sql: SELECT 1\n", 1, 8) == (5, 17)


def test_flow_style(load: Load) -> None:
    text = "version: 1\ntables: {t: {path: p}}\nqueries: {q: {sql: SELECT a}}\n"
    result = sql_location(load(text).queries["q"], 1, 8)
    assert (result.line, result.column) == (3, 27)


def test_a_literal_block_with_windows_line_ends(load: Load) -> None:
    text = (HEAD + "    sql: |\n      SELECT a\n      FROM t\n").replace("\n", "\r\n")
    result = sql_location(load(text).queries["q"], 2, 6)
    assert (result.line, result.column) == (7, 12)


def test_an_explicit_indentation(load: Load) -> None:
    assert place(load, "    sql: |2\n        SELECT a\n      FROM t\n", 1, 3) == (6, 9)
    assert place(load, "    sql: |2\n        SELECT a\n      FROM t\n", 2, 1) == (7, 7)


@pytest.mark.parametrize(
    "sql", ["    sql: >\n      SELECT a\n      FROM t\n", "    sql: SELECT a\n      FROM t\n"]
)
def test_folded_text_gives_the_start_of_the_scalar(load: Load, sql: str) -> None:
    assert place(load, sql, 1, 12) == (5, 10)


def test_a_place_after_a_variable_is_exact_and_inside_it_is_the_variable(load: Load) -> None:
    sql = '    sql: "SELECT ${COLUMN} FROM t WHERE $$x"\n'
    column_of = (HEAD + sql).split("\n")[4].index
    assert place(load, sql, 1, 8, COLUMN="long_name") == (5, column_of("${") + 1)
    assert place(load, sql, 1, 12, COLUMN="long_name") == (5, column_of("${") + 1)
    assert place(load, sql, 1, 18, COLUMN="long_name") == (5, column_of("FROM") + 1)
    assert place(load, sql, 1, 32, COLUMN="long_name") == (5, column_of("x") + 1)


def test_a_variable_with_a_line_break_moves_the_lines_behind_it(load: Load) -> None:
    sql = "    sql: |\n      SELECT ${C}\n      FROM t\n"
    assert place(load, sql, 3, 1, C="a,\nb") == (7, 7)
    assert place(load, sql, 2, 1, C="a,\nb") == (6, 14)


def test_a_place_outside_the_text_is_brought_inside(load: Load) -> None:
    sql = "    sql: SELECT 1\n"
    assert place(load, sql, 0, 0) == (5, 10)
    assert place(load, sql, 9, 99) == (5, 18)

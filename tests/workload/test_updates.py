"""Updates: one action each, typed rows, expressions as SQL text."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path

import pytest

from impctl.workload.models import ChangeSpec, DeleteSpec, InsertSpec

from .conftest import Load, Problems


def section(action: str) -> str:
    return f"updates:\n  - {{name: u, {action}}}\n"


def test_an_insert_of_rows(load_extra: Load) -> None:
    (update,) = load_extra(
        section(
            "insert: {table: sales, rows: [{a: 1, b: x, c: 1.5, d: true, e: null, f: 2022-01-01, "
            "g: 2022-01-01 01:02:03, h: '007', i: no, j: ''}, {a: 2}]}"
        )
    ).updates
    assert isinstance(update, InsertSpec)
    assert (update.name, update.table, update.file) == ("u", "sales", None)
    assert update.rows == (
        {
            "a": 1,
            "b": "x",
            "c": 1.5,
            "d": True,
            "e": None,
            "f": date(2022, 1, 1),
            "g": datetime(2022, 1, 1, 1, 2, 3),
            "h": "007",
            "i": "no",
            "j": "",
        },
        {"a": 2},
    )
    assert (update.location.line, update.location.column) == (5, 5)


def test_a_variable_in_a_row_is_typed_unless_quoted(load_extra: Load) -> None:
    text = (
        "updates:\n  - name: u\n    insert:\n      table: sales\n      rows:\n"
        "        - a: ${V}\n          b: '${V}'\n          c: x${V}\n"
    )
    (update,) = load_extra(text, {"V": "12"}).updates
    assert isinstance(update, InsertSpec)
    assert update.rows == ({"a": 12, "b": "12", "c": "x12"},)


@pytest.mark.parametrize("uri", ["s3://bucket/b.parquet", "file:///x/b.parquet", "/abs/b.parquet"])
def test_an_insert_of_a_file(load_extra: Load, tmp_path: Path, uri: str) -> None:
    text = (
        f"updates:\n  - {{name: a, insert: {{table: sales, file: sub/../b.csv}}}}\n"
        f"  - {{name: b, insert: {{table: sales, file: '{uri}'}}}}\n"
    )
    first, second = load_extra(text).updates
    assert isinstance(first, InsertSpec)
    assert isinstance(second, InsertSpec)
    assert (first.rows, first.file) == (None, str(tmp_path / "b.csv"))
    assert second.file == uri


def test_a_delete_and_a_change(load_extra: Load) -> None:
    delete, change, everywhere = load_extra(
        "updates:\n"
        "  - {name: d, delete: {table: sales, where: sid = 3}}\n"
        "  - name: c\n"
        "    update: {table: sales, set: {p: p * 2, n: 1, m: 1.50, t: true}, where: a > 1}\n"
        "  - {name: e, update: {table: sales, set: {p: \"'x'\"}}}\n"
    ).updates
    assert isinstance(delete, DeleteSpec)
    assert (delete.table, delete.where) == ("sales", "sid = 3")
    assert isinstance(change, ChangeSpec)
    assert change.assignments == {"p": "p * 2", "n": "1", "m": "1.50", "t": "true"}
    assert change.where == "a > 1"
    assert isinstance(everywhere, ChangeSpec)
    assert everywhere.where is None


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("insert: {table: sales}", "must have either `rows` or `file`"),
        ("insert: {table: sales, rows: [{a: 1}], file: x}", "must have either `rows` or `file`"),
        ("insert: {table: sales, rows: []}", "`updates[1].insert.rows` is empty"),
        ("insert: {table: sales, rows: [{}]}", "`updates[1].insert.rows[1]` is empty"),
        ("insert: {table: sales, rows: [1]}", "`updates[1].insert.rows[1]` must be a mapping"),
        ("insert: {table: sales, rows: {a: 1}}", "must be a list, not a mapping"),
        (
            "insert: {table: sales, rows: [{a: [1]}]}",
            "`updates[1].insert.rows[1].a` must be a single",
        ),
        ("insert: {table: sales, rows: [{a: 1, A: 2}]}", "are the same column"),
        ("insert: {table: sales, rows: [{' ': 1}]}", "A column name"),
        ("insert: {table: sales, rows: [{a: 0.1000000000000000000001}]}", "more digits"),
        ("insert: {table: sales, rows: [{a: 2022-02-30}]}", "calendar"),
        ("insert: {table: sales, file: ''}", "is empty"),
        ('insert: {table: sales, file: "a\\nb"}', "control character"),
        ("insert: {rows: [{a: 1}]}", "Key `table` is missing in `updates[1].insert`"),
        ("insert: {table: shops, rows: [{a: 1}]}", "Table `shops` in `updates[1].insert`"),
        ("insert: {table: sales, row: [{a: 1}], file: x}", "did you mean `rows`?"),
        ("insert: ", "`updates[1].insert` must be a mapping, not nothing"),
        ("delete: {table: sales}", "Key `where` is missing in `updates[1].delete`"),
        ("delete: {table: sales, where: }", "must be text, not nothing"),
        ("delete: {table: sales, where: true}", "must be text, not true or false"),
        ("update: {table: sales}", "Key `set` is missing in `updates[1].update`"),
        ("update: {table: sales, set: {}}", "`updates[1].update.set` is empty"),
        ("update: {table: sales, set: {a: }}", "`updates[1].update.set.a` is empty"),
        ("update: {table: sales, set: {a: ''}}", "`updates[1].update.set.a` is empty"),
        ("update: {table: sales, set: {a: [1]}}", "must be an SQL expression, not a list"),
        ("update: {table: sales, set: {a: 2022-01-01}}", "an SQL expression, not a date"),
        ("update: {table: sales, set: {a: b}, where: }", "must be text, not nothing"),
        ("upsert: {table: sales}", "did you mean `insert`?"),
        (
            "delete: {table: sales, where: a}, insert: {table: sales, rows: [{a: 1}]}",
            "exactly one of",
        ),
    ],
)
def test_updates_that_make_no_sense(extra_problems: Problems, action: str, message: str) -> None:
    result = extra_problems(section(action))
    assert any(message in problem for problem in result), result


def test_names_of_updates(extra_problems: Problems) -> None:
    delete = "delete: {table: sales, where: a}"
    result = extra_problems(
        f"updates:\n- {{name: a, {delete}}}\n- {{name: b, {delete}}}\n- {{name: a, {delete}}}\n"
        f"- {{{delete}}}\n- {{name: 'a b', {delete}}}\n- {{name: 7, {delete}}}\n"
    )
    assert [problem.split(" | ")[0] for problem in result] == [
        "4:10 Update `a` appears twice",
        "5:3 Key `name` is missing in `updates[4]`",
        "6:10 `a b` cannot be the name of an update",
        "7:10 `updates[6].name` must be text, not a whole number",
    ]
    assert "the first is on line 5" in result[0]


@pytest.mark.parametrize("value", ["{}", "x", "", "{name: a}"])
def test_updates_are_a_list(extra_problems: Problems, value: str) -> None:
    assert "`updates` must be a list" in extra_problems(f"updates: {value}\n")[0]


def test_no_updates(load_extra: Load) -> None:
    assert load_extra("updates: []\n").updates == ()

"""Columns that others add, widen, rename, drop, retype or make nullable, read by the query or not.

Columns can be renamed and dropped without rewriting the table only where names are mapped, which
deltalake does not write: the logs of those cases are written by hand, as Spark writes them.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import Field, write_deltalake
from deltalake.schema import PrimitiveType

from tests.outside.place import (
    SHOWN,
    Place,
    expect_carried,
    expect_recapture,
    expect_refused,
    make_place,
)
from tests.outside.rows import ROWS, more


def overwrite(place: Place, rows: pa.Table) -> None:
    write_deltalake(str(place.table), rows, mode="overwrite", schema_mode="overwrite")


def retyped(name: str, kind: pa.DataType, rows: pa.Table = ROWS) -> pa.Table:
    at = rows.column_names.index(name)
    return rows.set_column(at, name, rows[name].cast(kind))


def test_an_unused_column_is_added(place: Place) -> None:
    wider = more().append_column("extra", pa.array([1, 2, 3]))
    write_deltalake(str(place.table), wider, mode="append", schema_mode="merge")
    expect_carried(place, changes=3)


def test_a_column_is_added_without_a_row(place: Place) -> None:
    place.delta.alter.add_columns([Field("extra", PrimitiveType("long"))])
    expect_carried(place, changes=0)


@pytest.mark.slow
def test_a_column_that_the_query_reads_is_gone_and_comes_back(place: Place) -> None:
    """In between nothing can answer; afterwards the table's files tell."""
    overwrite(place, ROWS.drop_columns(["x"]))
    expect_refused(place, 3, "column_unknown", "`x`")
    overwrite(place, ROWS)
    place.append()
    expect_carried(place)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["g", "x"])
def test_a_used_column_is_renamed(place: Place, name: str) -> None:
    names = [f"{name}2" if one == name else one for one in ROWS.column_names]
    overwrite(place, ROWS.rename_columns(names))
    expect_refused(place, 3, "column_unknown", f"`{name}`")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["renamed", "dropped", "retyped", "widened"])
def test_an_unused_column_is_changed(place: Place, change: str) -> None:
    rows = {
        "renamed": ROWS.rename_columns(["g", "x", "label"]),
        "dropped": ROWS.drop_columns(["note"]),
        "retyped": ROWS.set_column(2, "note", pa.array(range(11))),
        "widened": retyped("note", pa.large_string()),
    }[change]
    overwrite(place, pa.concat_tables([rows, rows.slice(7, 2)]))
    expect_carried(place)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["g", "x"])
def test_a_used_column_is_widened(place: Place, name: str) -> None:
    overwrite(place, retyped(name, pa.int64()))
    expect_recapture(place, "schema_changed", f"`{name}`", "`int`", "`bigint`")


def test_a_used_column_is_retyped(place: Place) -> None:
    overwrite(place, retyped("x", pa.float64()))
    expect_recapture(place, "schema_changed", "`x`", "`int`", "`double`")


@pytest.mark.slow
def test_a_column_that_is_only_shown_is_retyped(place: Place) -> None:
    """The sketch does not depend on it."""
    shown = make_place(place.folder, place.cli.capsys, sql=SHOWN).captured()
    overwrite(place, retyped("x", pa.float64()))
    expect_carried(shown)


def test_a_column_changed_its_letters(place: Place) -> None:
    """`X` in place of `x` is the same name to SQL and another one to the files."""
    overwrite(place, ROWS.rename_columns(["g", "X", "note"]))
    expect_recapture(place, "schema_changed", "was replaced")


def test_columns_changed_places(place: Place) -> None:
    overwrite(place, ROWS.select(["note", "x", "g"]))
    expect_carried(place)


@pytest.mark.slow
def test_a_used_column_may_be_null_now(place: Place) -> None:
    place.delta.alter.add_constraint({"known": "x IS NOT NULL"})
    place.captured()
    place.delta.alter.drop_constraint("known")
    place.append(x=None)
    expect_carried(place, changes=3)

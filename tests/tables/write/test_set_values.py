"""Values of `set` that were written without the quotes of a literal.

Law: what the hint says to write in their place is taken, and sets what was meant; no hint says so
of an expression that has another fault.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from impctl.errors import ImpctlError, Location
from impctl.tables.rows import read_rows
from impctl.tables.source import open_source
from impctl.tables.write.apply import UpdateKind, UpdateRequest, apply_update
from impctl.tables.write.maintenance import create_table

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
PLACE = Location("w.yaml", 7, 9)


@pytest.fixture
def path(tmp_path: Path) -> str:
    folder = str(tmp_path / "t")
    table = pa.table(
        {
            "town": ["Rome"],
            "day": pa.array([date(2020, 2, 2)], pa.date32()),
            "at": pa.array([NEW_YEAR], pa.timestamp("us", tz="UTC")),
            "size": [1],
        }
    )
    create_table(folder, table)
    return folder


def set_to(path: str, column: str, written: str) -> object:
    request = UpdateRequest(
        "t", UpdateKind.UPDATE, assignments={column: written}, places={column: PLACE}
    )
    assert apply_update(open_source("t", path), request).updated == 1
    return read_rows(open_source("t", path).snapshot(), [column]).column(column)[0].as_py()


def refused(path: str, column: str, written: str) -> ImpctlError:
    with pytest.raises(ImpctlError) as caught:
        set_to(path, column, written)
    assert caught.value.location == PLACE
    return caught.value


@pytest.mark.parametrize(
    ("column", "written", "meant"),
    [
        ("town", "Berlin", "Berlin"),
        ("town", "New York", "New York"),
        ("town", "12:30", "12:30"),
        ("town", "town hall", "town hall"),
        ("day", "2026-01-01", NEW_YEAR.date()),
        ("day", "'2026-01-01'", NEW_YEAR.date()),
        ("at", "2026-01-01", NEW_YEAR),
        ("at", "2026-01-01T00:00:00Z", NEW_YEAR),
        ("at", "2026-01-01 00:00:00", NEW_YEAR),
        ("at", "2026-01-01 01:00:00+01:00", NEW_YEAR),
        ("at", "'2026-01-01T00:00:00Z'", NEW_YEAR),
    ],
)
def test_what_the_hint_says_is_taken(path: str, column: str, written: str, meant: object) -> None:
    error = refused(path, column, written)
    hinted = re.search(
        r'values of `set` are SQL expressions: write this one as "(.*?)"', str(error.hint)
    )
    assert hinted is not None, error.hint
    assert set_to(path, column, hinted[1]) == meant


@pytest.mark.parametrize(
    ("column", "written", "hint"),
    [
        ("size", "sise + 1", "did you mean `size`|known columns"),
        ("size", "size +", "text and times need their own quotes"),
        ("at", "at + ", "text and times need their own quotes"),
        ("town", "uper(town)", "."),
        ("town", "size + sise", "did you mean `size`|known columns"),
        ("town", "day = sise", "did you mean `size`|known columns"),
        ("size", "'abc'", "explicit CAST"),
        ("at", "'noon'", "explicit CAST"),
        ("town", "'Rome' FROM updated_table WHERE size = 9 --", "."),
        ("town", 'say "hi"', "text and times need their own quotes"),
        ("town", r"C:\temp", "text and times need their own quotes"),
        ("day", "2026-02-30", "."),
        ("day", "'2026-02-30'", "."),
        ("town", "upper('x'", "text and times need their own quotes"),
    ],
)
def test_of_other_faults_it_says_no_literal(
    path: str, column: str, written: str, hint: str
) -> None:
    result = str(refused(path, column, written).hint)
    assert re.search(hint, result), result
    assert "write this one as" not in result


def test_the_key_is_named(path: str) -> None:
    assert "`set` of `t.town` cannot be used" in refused(path, "town", "Berlin").message

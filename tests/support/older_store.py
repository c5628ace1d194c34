"""A catalog as releases before wrote it, made of one of today."""

from __future__ import annotations

import sqlite3
from pathlib import Path

_SINCE = {
    2: ("DROP TABLE cost",),
    4: ("DROP TABLE sketch_basis",),
    5: ("ALTER TABLE run DROP COLUMN sums", "DROP TABLE scrub"),
    6: ("DROP TABLE arrival_log", "DROP TABLE arrival"),
    7: ("ALTER TABLE cost DROP COLUMN moved",),
    8: ("ALTER TABLE cost DROP COLUMN parts", "DROP TABLE state_choice"),
    10: ("ALTER TABLE cost DROP COLUMN layout",),
}
"""What takes away what each format brought; marks of files (3) and expiries (9) lie in rows."""


def as_format(root: Path, number: int) -> None:
    """Take away what later formats have; before format 5 files of runs have one checksum each."""
    connection = sqlite3.connect(root / "catalog.sqlite")
    for later, statements in reversed(_SINCE.items()):
        for statement in statements if later > number else ():
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {number}")
    connection.commit()
    connection.close()

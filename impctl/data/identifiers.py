"""Names of tables and columns as they stand in SQL.

Law: any name can stand there, whatever characters it has. Out of scope: reading names (`plan`).
"""

from __future__ import annotations


def quoted(name: str) -> str:
    """The name in backticks, as Spark and Delta's constraints write it."""
    return "`" + name.replace("`", "``") + "`"

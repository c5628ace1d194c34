"""What sets a property of a Delta table, to be copied from what is advised.

Law: each call names the table by its path, so that it runs as it stands: one for Spark, and one for
Python without it. Out of scope: whether to set it (`examining.tables`, `examining.history`).
"""

from __future__ import annotations


def setting_calls(path: str, setting: str, value: str) -> str:
    """Both calls, in half a sentence."""
    spark = f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{setting}' = '{value}')"
    python = f"DeltaTable({path!r}).alter.set_table_properties({{'{setting}': '{value}'}})"
    return f"in Spark {spark}, or with deltalake {python}"

"""Tables that `apply` may write: refused by name is what deltalake would damage.

Law: a table that passes is written by deltalake as Spark would write it; what a table's schema,
properties or files have that the two understand differently is refused.
Out of scope: the batch itself (`tables.write.updates`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from impctl.errors import TableError
from impctl.tables.footers import miscopied_columns
from impctl.tables.snapshot import DataFile, Snapshot

_BOOLEANS = ("true", "false")


def check_writable(snapshot: Snapshot) -> None:
    """Refuse tables into which deltalake would write something other than Spark would."""
    reason = None
    if snapshot.column_mapping is not None:
        reason = "it uses column mapping"
    for key, value in sorted(snapshot.configuration.items()):
        if key.startswith("delta.") and value.lower() in _BOOLEANS and value not in _BOOLEANS:
            reason = f"Spark reads its property `{key}` = `{value}`, but deltalake does not"
    fields = json.loads(snapshot.schema_json)["fields"]
    for entry in fields:
        if "delta.generationExpression" in entry["metadata"]:
            reason = f"its column `{entry['name']}` is generated"
        if any(key.startswith("delta.identity.") for key in entry["metadata"]):
            reason = f"its column `{entry['name']}` is an identity column"
        if entry["name"] in snapshot.partition_columns:
            reason = _partition_reason(entry["name"], entry["type"]) or reason
    if reason is not None:
        raise TableError(
            f"impctl cannot write to table `{snapshot.table}`: {reason}",
            hint="apply the batch with Spark and the Delta JAR",
            code="table_not_writable",
        )


def _partition_reason(name: str, kind: object) -> str | None:
    """Why values of the partition column cannot be left to deltalake; None where they can."""
    text = str(kind)
    if text == "timestamp":
        return f"deltalake writes times of its partition column `{name}` without a time zone"
    if text.startswith("decimal"):
        return (
            f"deltalake writes negative decimals of its partition column `{name}` as different text"
        )
    if text == "binary":
        return f"deltalake writes binary values of its partition column `{name}` as different text"
    return None


def check_rewritable(snapshot: Snapshot, files: Sequence[DataFile] | None = None) -> None:
    """Deletes and updates copy rows; refuse where the copy would not be the row.

    Looks at these files, at all of them without.
    """
    wrong = miscopied_columns(snapshot, files)
    if wrong.as_int96:
        reason = (
            f"column `{min(wrong.as_int96)}` is stored as INT96, which deltalake copies incorrectly"
        )
        code = "int96_timestamps"
    elif wrong.in_old_calendar:
        reason = (
            f"column `{min(wrong.in_old_calendar)}` may have old dates or times in the calendar of "
            "Spark 2, which deltalake would change"
        )
        code = "legacy_calendar"
    elif wrong.respelled:
        reason = (
            f"a data file writes the name of column `{min(wrong.respelled)}`, or of a field in it, "
            "in different case, and deltalake would replace its values with NULL"
        )
        code = "table_not_writable"
    else:
        return
    raise TableError(
        f"impctl cannot change rows of table `{snapshot.table}`: {reason}",
        hint="apply the batch with Spark and the Delta JAR, or rewrite the table's files",
        code=code,
    )

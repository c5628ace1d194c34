"""What to call the occurrences of a table that a query reads more than once.

Law: a table read once needs no other name than its own; else each occurrence has one, its alias
where the text gives one, and no two have the same.
Out of scope: what an access is (`plan.nodes`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from impctl.app.preparing.prepared import PreparedQuery
from impctl.plan.nodes import Scan
from impctl.types import AccessId

_ALIAS = re.compile(r"\s+(?:as\s+)?`?([a-z_]\w*)`?", re.IGNORECASE)
_CLAUSES = frozenset(
    (
        *("anti", "cluster", "cross", "distribute", "except", "full", "group", "having", "inner"),
        *("intersect", "join", "lateral", "left", "limit", "minus", "natural", "on", "order"),
        *("pivot", "qualify", "right", "semi", "sort", "tablesample", "union", "unpivot", "using"),
        *("where", "window"),
    )
)
"""Words that may follow a table's name and are no alias."""


def occurrences(prepared: PreparedQuery) -> Mapping[AccessId, str]:
    """`a`, `b` (aliases), or `1st`, `2nd`; empty for a table that is read once."""
    result: dict[AccessId, str] = {}
    for table in prepared.tables:
        own = [scan for scan in prepared.scans if scan.table == table]
        names = [_alias(prepared.query.sql, scan) for scan in own]
        is_told = "" not in names and len(set(names)) == len(names)
        for number, (scan, name) in enumerate(zip(own, names, strict=True), start=1):
            said = name if is_told else _ordinal(number)
            result[scan.access] = said if len(own) > 1 else ""
    return result


def _alias(sql: str, scan: Scan) -> str:
    """What the text calls an occurrence; empty where that is the table's name, or not to be had."""
    if scan.span is None:
        return ""
    written = _ALIAS.match(sql, scan.span.end)
    return "" if written is None or written[1].lower() in _CLAUSES else written[1]


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number % 100 < 14 else ending}"

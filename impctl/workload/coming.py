"""What the workload file says of changes that are to come: `changes` of a table.

Law: `never` is that the table does not change; else one expectation or a list of them, for as long
as the table's log cannot know yet. Times without a zone are in UTC.
Out of scope: what follows from it (`app.maintaining.expected`).
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time

from yaml.nodes import Node, ScalarNode, SequenceNode

from impctl.workload.durations import DURATION_PATTERN, seconds_in
from impctl.workload.models import ComingSpec
from impctl.workload.reading import FileReading, inside, written_at
from impctl.workload.scalars import ScalarFault, plain_value
from impctl.workload.schema_parts import JsonSchema, object_of, or_variable

NEVER = "never"
MAX_ROWS = 1_000_000_000_000
"""More rows are no change that anybody carries on."""

_KEYS = ("every", "rows", "deletes", "from", "until")
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)[ ]*%")
_MOMENT_PATTERN = r"^\d{4}-\d\d-\d\d"


def read_changes(
    node: Node | None, where: str, reading: FileReading
) -> tuple[ComingSpec, ...] | None:
    """The changes to come, none for `never`; None where nothing is said, or something is wrong."""
    if node is None:
        return None
    if isinstance(node, ScalarNode):
        return _never(node, where, reading)
    if not isinstance(node, SequenceNode):
        result = _read_one(node, where, reading)
        return None if result is None else (result,)
    nodes = reading.elements(node, where)
    if nodes is None:
        return None
    if not nodes:
        reading.report(
            node, f"{where} is empty", "write `changes: never`, or describe the expected changes"
        )
    read = [_read_one(each, where, reading) for each in nodes]
    known = tuple(each for each in read if each is not None)
    return known if known and len(known) == len(read) else None


def _never(node: Node, where: str, reading: FileReading) -> tuple[ComingSpec, ...] | None:
    written = reading.text(node, where)
    if written is None or written == NEVER:
        return None if written is None else ()
    reading.report(
        node,
        f"{where} must be `{NEVER}`, a mapping, or a list of mappings",
        "write `changes: never`, or for example `changes: {every: 1h, rows: 200, deletes: 5%}`",
    )
    return None


def _read_one(node: Node, where: str, reading: FileReading) -> ComingSpec | None:
    known = len(reading.problems)
    fields = reading.record(node, where, (), _KEYS)
    if fields is None:
        return None
    if not fields and len(reading.problems) == known:
        reading.report(node, f"{where} is empty", "write `every`, `from` or `until`")
    every = read_duration(fields.get("every"), inside(where, "every"), reading)
    rows = reading.whole_number(
        fields.get("rows"),
        inside(where, "rows"),
        MAX_ROWS,
        "write the usual number of rows per change",
    )
    deletes = _share(fields.get("deletes"), inside(where, "deletes"), reading)
    since = _moment(fields.get("from"), inside(where, "from"), reading)
    until = _moment(fields.get("until"), inside(where, "until"), reading)
    for name, needed in (("rows", "every"), ("deletes", "rows")):
        if name in fields and needed not in fields:
            reading.report(
                fields[name],
                f"{inside(where, name)} needs `{needed}`",
                f"add `{needed}:`",
            )
    if since is not None and until is not None and until <= since:
        reading.report(
            fields["until"],
            f"{inside(where, 'until')} must be later than `from`",
            "the expectation applies from `from` until before `until`",
        )
    if len(reading.problems) > known:
        return None
    return ComingSpec(every, rows, 0.0 if deletes is None else deletes, since, until)


def read_duration(node: Node | None, where: str, reading: FileReading) -> float | None:
    """The seconds written; None where nothing is, or no duration."""
    cell = reading.cell(node, where, "a duration such as 1h")
    if node is None or cell is None:
        return None
    seconds = seconds_in(cell.written, needs_unit=True)
    if seconds is None:
        said = written_at(node, cell.written)
        reading.report(
            node, f"{where}: {said} is not a duration", "write a duration such as 10m or 1h"
        )
    return seconds


def _share(node: Node | None, where: str, reading: FileReading) -> float | None:
    cell = reading.cell(node, where, "a share such as 5%")
    if node is None or cell is None:
        return None
    match = _SHARE.fullmatch(cell.written.strip())
    if match is None or float(match[1]) > 100:
        said = written_at(node, cell.written)
        reading.report(
            node, f"{where}: {said} is not a share of the rows", "write a share such as 5%"
        )
        return None
    return float(match[1]) / 100


def _moment(node: Node | None, where: str, reading: FileReading) -> float | None:
    """Seconds since 1970 of a day or a time."""
    cell = reading.cell(node, where, "a date such as 2026-12-01")
    if node is None or cell is None:
        return None
    value = cell.value
    if isinstance(value, str):
        try:
            value = plain_value(value)
        except ScalarFault as fault:
            reading.report(node, f"{where}: {fault.message}", fault.hint)
            return None
    if not isinstance(value, date):
        reading.report(
            node,
            f"{where}: {written_at(node, cell.written)} is not a date or a time",
            "write a date such as 2026-12-01, or a time such as 2026-12-01 18:00:00",
        )
        return None
    at = value if isinstance(value, datetime) else datetime.combine(value, time())
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def changes_schema() -> JsonSchema:
    """What `changes` of a table may be, for editors."""
    moment: JsonSchema = {"type": "string", "pattern": _MOMENT_PATTERN}
    share: JsonSchema = {"type": "string", "pattern": f"^{_SHARE.pattern}$"}
    one = {
        **object_of(
            "Expected changes that the table's log does not show yet.",
            {
                "every": or_variable(
                    {"type": "string", "pattern": f"^{DURATION_PATTERN}$"},
                    "How often the table changes, such as 1h.",
                ),
                "rows": or_variable(
                    {"type": "integer", "minimum": 1, "maximum": MAX_ROWS},
                    "Rows per change.",
                ),
                "deletes": or_variable(share, "Share of the rows that are deletions, such as 5%."),
                "from": or_variable(moment, "Date or time from which this is expected."),
                "until": or_variable(moment, "Date or time before which this is expected."),
            },
        ),
        "minProperties": 1,
    }
    return {
        "description": "Expected changes: `never`, or how often and how large.",
        "anyOf": [
            or_variable({"const": NEVER}, "The table does not change."),
            one,
            {"type": "array", "minItems": 1, "items": one},
        ],
    }

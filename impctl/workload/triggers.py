"""The key `trigger` of a query, or of `defaults`: when it is maintained.

    trigger: commit | use
    trigger: {fresh_within: 10m, rows: 10000, every: 15m, cron: "0 6 * * 1-5",
              timezone: Europe/Vienna, point: nightly, ready_within: 5s, cheap: true}

Law: what could not come true, or would be guessed at, is a problem with its place: a duration
without unit, two clocks (`every` and `cron`), a zone that nobody knows, and what goes beside
something that is not there. Out of scope: when that is (`app.maintaining.due`).
"""

from __future__ import annotations

from collections.abc import Mapping

from yaml.nodes import MappingNode, Node

from impctl.workload.coming import MAX_ROWS
from impctl.workload.cron import MACROS, Cron, CronFault, read_cron
from impctl.workload.durations import DURATION_PATTERN, seconds_in, written
from impctl.workload.names import NAME_PATTERN, is_name, refuse_name
from impctl.workload.reading import FileReading, inside
from impctl.workload.schema_parts import JsonSchema, object_of, or_variable, text_of
from impctl.workload.trigger_models import Alone, Trigger, zone_named

KEYS = (
    *("fresh_within", "rows", "every", "cron", "timezone"),
    *("point", "ready_within", "cheap"),
)
_DAY = 86_400.0
_CLOCKS = ("every", "cron")
_WHEN = ("fresh_within", "rows", "every", "cron", "point")
"""What a trigger needs one of."""

_BESIDE = {"timezone": _CLOCKS, "ready_within": (*_CLOCKS, "point"), "cheap": _WHEN}
"""What goes only beside one of others."""


def read_trigger(node: Node | None, path: str, reading: FileReading) -> Trigger | None:
    """The trigger; None where the file says none, or where a problem was noted."""
    if node is None:
        return None
    known = len(reading.problems)
    if not isinstance(node, MappingNode):
        beside = ", or a mapping such as `fresh_within: 10m`"
        word = reading.choice(node, path, list(Alone), beside=beside)
        return None if word is None else Trigger(alone=Alone(word))
    entries = reading.entries(node, path) or {}
    for word in Alone:
        if word in entries:
            told = f"`{word}` in {path} cannot be combined with other keys"
            reading.report(entries[word].key, told, f"write `trigger: {word}`, or remove it")
    if len(reading.problems) > known:
        return None
    fields = reading.record(node, path, (), KEYS) or {}
    if len(reading.problems) == known:
        _check_together(node, fields, path, reading)
    trigger = Trigger(
        rows=_rows(fields.get("rows"), inside(path, "rows"), reading),
        every=_every(fields.get("every"), inside(path, "every"), reading),
        cron=_cron(fields.get("cron"), inside(path, "cron"), reading),
        timezone=_zone(fields.get("timezone"), inside(path, "timezone"), reading),
        fresh_within=_span(fields.get("fresh_within"), inside(path, "fresh_within"), reading),
        point=_point(fields.get("point"), inside(path, "point"), reading),
        ready_within=_span(fields.get("ready_within"), inside(path, "ready_within"), reading),
        cheap=_cheap(fields.get("cheap"), inside(path, "cheap"), reading),
    )
    return trigger if len(reading.problems) == known else None


def _check_together(
    node: Node, fields: Mapping[str, Node], path: str, reading: FileReading
) -> None:
    """Note what excludes each other, and what stands without what it goes beside."""
    if all(name in fields for name in _CLOCKS):
        told = f"`every` and `cron` in {path} cannot be combined"
        reading.report(fields["cron"], told, "remove one of them")
    if not any(name in fields for name in _WHEN):
        listed = ", ".join(f"`{name}`" for name in _WHEN)
        reading.report(
            node, f"{path} does not specify a time or condition", f"use at least one of {listed}"
        )
        return
    for name, others in _BESIDE.items():
        if name in fields and not any(other in fields for other in others):
            listed = " or ".join(f"`{other}`" for other in others)
            told = f"`{name}` in {path} requires {listed}"
            reading.report(fields[name], told, "add one of them, or remove it")


def _span(node: Node | None, path: str, reading: FileReading) -> float | None:
    """A duration with its unit."""
    cell = reading.cell(node, path, "a duration such as 10m")
    if node is None or cell is None:
        return None
    seconds = seconds_in(cell.written, needs_unit=True)
    if seconds is None:
        reading.report(node, f"{path} must be a duration such as 10m", _UNITS_HINT)
    return seconds


_UNITS_HINT = "write a number above 0 with its unit: `500ms`, `5s`, `10m`, `1h` or `7d`"


def _every(node: Node | None, path: str, reading: FileReading) -> float | None:
    seconds = _span(node, path, reading)
    if node is None or seconds is None:
        return None
    if not 1.0 <= seconds <= _DAY:
        told = f"{path} must be from 1s to {written(_DAY)}, because it is counted from midnight"
        reading.report(
            node, told, "use `cron` for days and weeks, and `commit` for shorter intervals"
        )
        return None
    return seconds


def _rows(node: Node | None, path: str, reading: FileReading) -> int | None:
    usual = "write the number of changed rows that justify a run, for example 10000"
    return reading.whole_number(node, path, MAX_ROWS, usual)


def _cron(node: Node | None, path: str, reading: FileReading) -> Cron | None:
    text = reading.text(node, path)
    if node is None or text is None:
        return None
    try:
        return read_cron(text)
    except CronFault as fault:
        reading.report(node, f"{path} is not a valid cron expression: {fault.message}", fault.hint)
        return None


def _zone(node: Node | None, path: str, reading: FileReading) -> str | None:
    name = reading.text(node, path)
    if node is None or name is None:
        return None
    if zone_named(name) is None:
        told = f"{path} is a time zone that this machine does not know"
        reading.report(
            node,
            told,
            "use a name such as `Europe/Vienna`; on a minimal system, install `tzdata`",
        )
        return None
    return name


def _point(node: Node | None, path: str, reading: FileReading) -> str | None:
    name = reading.text(node, path)
    if node is None or name is None:
        return None
    if not is_name(name):
        refuse_name(node, name, "a point", reading)
        return None
    return name


def _cheap(node: Node | None, path: str, reading: FileReading) -> bool:
    cell = reading.cell(node, path, "`true` or `false`")
    if node is None or cell is None:
        return False
    if not isinstance(cell.value, bool):
        reading.report(node, f"{path} must be `true` or `false`", "write it without quotes")
        return False
    return cell.value


def trigger_schema() -> JsonSchema:
    """The piece of the file's JSON Schema."""
    span: JsonSchema = {"type": "string", "pattern": rf"^\s*{DURATION_PATTERN}\s*$"}
    mapping = object_of(
        "When to maintain: at the first of these conditions.",
        {
            "fresh_within": or_variable(span, "Maximum time until a commit is in the sketch."),
            "rows": or_variable(
                {"type": "integer", "minimum": 1, "maximum": MAX_ROWS},
                "When this many changed rows are pending, according to the tables' logs.",
            ),
            "every": or_variable(
                span, "At multiples of this interval since midnight, from 1s to 1d."
            ),
            "cron": text_of(f"A cron expression with five fields, or one of {', '.join(MACROS)}."),
            "timezone": text_of("Time zone of `every` and `cron`; default: UTC."),
            "point": or_variable(
                {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
                "When `impctl maintain --point` gives this name.",
            ),
            "ready_within": or_variable(
                span,
                (
                    "Maintains ahead of time, so that at most this much work is left at the "
                    "planned time."
                ),
            ),
            "cheap": or_variable(
                {"type": "boolean"},
                (
                    "Also maintains earlier, when nothing else is due and it takes less than a "
                    "second."
                ),
            ),
        },
    )
    mapping["anyOf"] = [{"required": [name]} for name in _WHEN]
    return {
        "description": "When to maintain the query: after each commit (default), when its sketch "
        "is used, or at the conditions in a mapping.",
        "anyOf": [
            {"enum": [str(word) for word in Alone]},
            {"type": "string", "pattern": r"\$\{"},
            mapping,
        ],
    }

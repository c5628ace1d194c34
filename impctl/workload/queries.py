"""The section `queries` of the workload file.

Law: the SQL text is taken as it stands, with its place; only `plan` reads it. A parameter's value
has the type that YAML gives it; a number with a point and no exponent is an exact decimal, as it
is in SQL.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal

from yaml.nodes import MappingNode, Node, ScalarNode

from impctl.types import ParameterValue
from impctl.workload.models import (
    EVERYTHING,
    Everything,
    JoinStrategy,
    Lineage,
    MaintainMode,
    Moves,
    Policy,
    ProvenanceSpec,
    QuerySpec,
    Ship,
    StateKept,
)
from impctl.workload.names import (
    Declared,
    declared_table,
    is_identifier,
    is_name,
    refuse_name,
)
from impctl.workload.reading import Entry, FileReading, YamlScalar, inside, shown, written_at
from impctl.workload.sql_location import origin_of
from impctl.workload.triggers import read_trigger

NO_SKETCH = "none"
"""What `sketch` of a query says that is to have none."""

SETTINGS = ("policy", "maintain", "join", "state", "buffer", "lineage", "answer", "trigger")
"""What `defaults` may say for all queries."""

_CHOICES: Mapping[str, Sequence[str]] = {
    "policy": list(Policy),
    "maintain": list(MaintainMode),
    "join": list(JoinStrategy),
    "lineage": list(Lineage),
    "state": list(StateKept),
}

_NO_ANSWER = {
    NO_SKETCH: "it is stored with the sketch; remove one of the two",
    str(Lineage.WITNESS): (
        "a materialized result needs all rows, not only witnesses; remove one of the two"
    ),
}
"""What an answer cannot be kept with, and the hint."""

ABSORPTION = "absorption"
"""What `provenance` of a query says, or its `kind`."""

MAX_NODES = 1_000_000_000
"""Some twenty gigabytes."""

_OF_ALL = "absorption uses all derivations; write `lineage: all` or remove it"
_NO_FUNCTIONS = {
    NO_SKETCH: "it is stored with the sketch; remove one of the two",
    str(Lineage.WITNESS): _OF_ALL,
    str(Lineage.ANSWER): _OF_ALL,
}
"""What recursion cannot be kept by absorption with, and the hint."""

MAX_BUFFER = 1_000_000
"""More than that is as good as keeping everything, which `all` says."""


def read_defaults(node: Node | None, reading: FileReading) -> Mapping[str, Node]:
    """How queries are kept that do not say so themselves, from the section `defaults`."""
    path = "`defaults`"
    result = {} if node is None else reading.record(node, path, (), SETTINGS) or {}
    known = len(reading.problems)
    read = {name: value for name, value in result.items() if _is_right(name, value, path, reading)}
    return read if len(reading.problems) == known else {}


def _is_right(name: str, node: Node, path: str, reading: FileReading) -> bool:
    """Whether a setting has a value of its kind; what is wrong with it is told here, once."""
    where = inside(path, name)
    match name:
        case "buffer":
            return _read_buffer(node, where, reading) is not None
        case "answer":
            return _read_switch(node, where, reading) is not None
        case "trigger":
            return read_trigger(node, where, reading) is not None
    return reading.choice(node, where, _CHOICES[name]) is not None


def read_queries(
    node: Node | None, tables: Declared, defaults: Mapping[str, Node], reading: FileReading
) -> dict[str, QuerySpec]:
    """The queries that could be read, in file order; what they do not say they have by default."""
    entries = reading.entries(node, "`queries`")
    if node is None or entries is None:
        return {}
    if not entries:
        reading.report(node, "`queries` is empty", "write at least one query")
    result: dict[str, QuerySpec] = {}
    for name, entry in entries.items():
        if not is_name(name):
            refuse_name(entry.key, name, "a query", reading)
        spec = _read_query(name, entry, tables, defaults, reading)
        if spec is not None:
            result[name] = spec
    return result


def _read_query(
    name: str, entry: Entry, tables: Declared, defaults: Mapping[str, Node], reading: FileReading
) -> QuerySpec | None:
    path = inside("`queries`", name)
    own = reading.record(entry.value, path, ("sql",), ("params", "sketch", "provenance", *SETTINGS))
    if own is None:
        return None
    fields = {**defaults, **own}
    params, moves = _read_params(fields.get("params"), inside(path, "params"), reading)
    wanted = fields.get("sketch")
    is_sketched = not _is_none(wanted)
    where = inside(path, "sketch")
    sketch = _read_sketch(wanted, where, tables, reading) if is_sketched else {}

    def chosen(name: str) -> str | None:
        return reading.choice(fields.get(name), inside(path, name), _CHOICES[name])

    policy = chosen("policy")
    maintain = chosen("maintain")
    join = chosen("join")
    buffer = _read_buffer(fields.get("buffer"), inside(path, "buffer"), reading)
    lineage = chosen("lineage")
    answer = _read_answer(fields, own, path, reading)
    trigger = read_trigger(fields.get("trigger"), inside(path, "trigger"), reading)
    node = fields.get("sql")
    sql = reading.resolved_text(node, inside(path, "sql"))
    if sql is None or not isinstance(node, ScalarNode):
        return None
    return QuerySpec(
        name=name,
        sql=sql.text,
        sketch=sketch,
        policy=Policy.AUTO if policy is None else Policy(policy),
        maintain=MaintainMode.LAZY if maintain is None else MaintainMode(maintain),
        join=JoinStrategy.AUTO if join is None else JoinStrategy(join),
        location=reading.at(entry.key),
        sql_origin=origin_of(node, sql, reading.lines),
        params=params,
        moves=moves,
        buffer=buffer,
        lineage=Lineage.ALL if lineage is None else Lineage(lineage),
        lineage_place=reading.at(own["lineage"]) if "lineage" in own else None,
        is_sketched=is_sketched,
        answer=answer,
        trigger=trigger,
        state=_read_state(fields, own, path, reading),
        provenance=_read_provenance(fields, path, reading),
    )


def _read_state(
    fields: Mapping[str, Node], own: Mapping[str, Node], path: str, reading: FileReading
) -> StateKept | None:
    """What is kept whatever the budget; by default only where `join` leaves that open."""
    where = inside(path, "state")
    choice = reading.choice(fields.get("state"), where, _CHOICES["state"])
    join = fields.get("join")
    is_open = not isinstance(join, ScalarNode) or join.value == JoinStrategy.AUTO
    if choice is None or is_open:
        return None if choice is None else StateKept(choice)
    if "state" in own and isinstance(join, ScalarNode):
        hint = "`join` already determines the state to keep; remove one of the two"
        reading.report(own["state"], f"{where} cannot be combined with `join: {join.value}`", hint)
    return None


def _read_provenance(
    fields: Mapping[str, Node], path: str, reading: FileReading
) -> ProvenanceSpec | None:
    """How recursion is kept by absorption; None where the file does not say so."""
    node, where = fields.get("provenance"), inside(path, "provenance")
    if node is None:
        return None
    for other in ("sketch", "lineage"):
        told = fields.get(other)
        if isinstance(told, ScalarNode) and told.value in _NO_FUNCTIONS:
            what = f"{where} cannot be combined with `{other}: {told.value}`"
            reading.report(node, what, _NO_FUNCTIONS[told.value])
    if not isinstance(node, MappingNode):
        also = ", or a mapping with `kind`, `ship` and `nodes`"
        reading.choice(node, where, [ABSORPTION], beside=also)
        return ProvenanceSpec()
    own = reading.record(node, where, ("kind",), ("ship", "nodes")) or {}
    reading.choice(own.get("kind"), inside(where, "kind"), [ABSORPTION])
    ship = reading.choice(own.get("ship"), inside(where, "ship"), list(Ship))
    usual = "5000000 nodes take about 100 MB"
    nodes = reading.whole_number(own.get("nodes"), inside(where, "nodes"), MAX_NODES, usual)
    usually = ProvenanceSpec()
    return ProvenanceSpec(
        usually.ship if ship is None else Ship(ship), usually.nodes if nodes is None else nodes
    )


def _read_answer(
    fields: Mapping[str, Node], own: Mapping[str, Node], path: str, reading: FileReading
) -> bool:
    """Whether the rows of the answer are to be kept; by default only where they can be."""
    node, where = fields.get("answer"), inside(path, "answer")
    is_kept = _read_switch(node, where, reading)
    if node is None or not is_kept:
        return False
    for other in ("sketch", "lineage"):
        told = fields.get(other)
        if isinstance(told, ScalarNode) and told.value in _NO_ANSWER:
            if "answer" not in own:
                return False
            what = f"{where} cannot be combined with `{other}: {told.value}`"
            reading.report(node, what, _NO_ANSWER[told.value])
    return True


def _read_switch(node: Node | None, path: str, reading: FileReading) -> bool | None:
    cell = reading.cell(node, path, "`true` or `false`")
    if node is None or cell is None:
        return None
    if not isinstance(cell.value, bool):
        reading.report(node, f"{path} must be `true` or `false`", "write it without quotes")
        return None
    return cell.value


def _read_buffer(node: Node | None, path: str, reading: FileReading) -> int | Everything | None:
    cell = reading.cell(node, path, f"a whole number or `{EVERYTHING}`")
    if cell is None:
        return None
    if cell.value == EVERYTHING:
        return EVERYTHING
    usual = f"100 to 10000 suit most queries; `{EVERYTHING}` keeps everything"
    return reading.whole_number(node, path, MAX_BUFFER, usual)


def _is_none(node: Node | None) -> bool:
    """Whether the file says `sketch: none`."""
    return isinstance(node, ScalarNode) and node.value == NO_SKETCH


def _read_params(
    node: Node | None, path: str, reading: FileReading
) -> tuple[Mapping[str, ParameterValue], Mapping[str, Moves]]:
    """Values, and the parameters that move."""
    params: dict[str, ParameterValue] = {}
    moves: dict[str, Moves] = {}
    for name, entry in (reading.entries(node, path) or {}).items():
        if not is_identifier(name):
            hint = "use letters, digits and `_`, and do not start with a digit"
            reading.report(
                entry.key, f"{written_at(entry.key, name)} cannot be the name of a parameter", hint
            )
        where = inside(path, name)
        if isinstance(entry.value, MappingNode):
            fields = reading.record(entry.value, where, ("moves",)) or {}
            choice = reading.choice(fields.get("moves"), inside(where, "moves"), list(Moves))
            if choice is not None:
                moves[name] = Moves(choice)
            continue
        cell = reading.cell(entry.value, where, "a single value")
        value = None if cell is None else _parameter_value(cell)
        if cell is not None and value is None:
            hint = "write a number, text, a date, a timestamp, or true or false"
            reading.report(entry.value, f"{where} has no value for the SQL", hint)
        if value is not None:
            params[name] = value
    return params, moves


def _parameter_value(cell: YamlScalar) -> ParameterValue | None:
    """The value of a parameter; None for NULL, NaN and infinity, which no literal stands for."""
    if not isinstance(cell.value, float):
        return cell.value
    if not math.isfinite(cell.value):
        return None
    has_exponent = "e" in cell.written.lower()
    return cell.value if has_exponent else Decimal(cell.written)


def _read_sketch(
    node: Node | None, path: str, tables: Declared, reading: FileReading
) -> Mapping[str, str]:
    sketch: dict[str, str] = {}
    if isinstance(node, ScalarNode):
        hint = "write `table: column`, or `none` for a query without a sketch"
        reading.report(node, f"{path} must be a mapping, or `{NO_SKETCH}`", hint)
        return sketch
    for table, entry in (reading.entries(node, path) or {}).items():
        column = reading.text(entry.value, inside(path, table))
        result = declared_table(table, entry.key, tables, path, reading)
        if result in sketch:
            hint = "remove one; all names of a table refer to the same table"
            reading.report(entry.key, f"Table {shown(table)} appears twice in {path}", hint)
        if result is not None and column is not None:
            sketch[result] = column
    return sketch

"""Reading the sections of a workload file by the keys that the models declare.

Law: a reader takes a node, its path for messages and the pass over the file. As with `FileReading`,
None means that a problem was reported or that there is no node. A model is complete only if no
problem was reported.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from msgspec import Struct
from msgspec.structs import replace
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from impctl.data.schema import name_parts
from impctl.sql.names import (
    CATALOG_SCHEME,
    SPARK_CATALOG,
    SPARK_SCHEMA,
    FullName,
    TableNames,
    path_key,
)
from impctl.types import Secrets
from impctl.workload.models import (
    IDENTIFIER_PATTERN,
    MAX_BOUNDARIES,
    NAME_HINT,
    NAME_PATTERN,
    NO_SKETCH,
    TABLE_PATTERN,
    BoundaryLiteral,
    ChangeSpec,
    ExpectedChanges,
    ExpirySpec,
    InsertSpec,
    JoinStrategy,
    LineageMode,
    MovingParameter,
    ParameterMoves,
    PartitionSpec,
    ProvenanceSpec,
    QuerySpec,
    SimpleTrigger,
    SqlOrigin,
    TableSpec,
    Trigger,
    UpdateEntry,
    UpdateSpec,
    ValueKind,
    ViewSpec,
    keys_of,
    kind_of,
    store_path_problem,
)
from impctl.workload.scalars import CellValue, ScalarFault, YamlScalar, kind_text
from impctl.workload.yaml import (
    FileReading,
    MappingEntry,
    inside,
    origin_of,
    shown,
    suggestion,
    written_at,
)

if TYPE_CHECKING:
    from impctl.errors import Location
    from impctl.types import ParameterValue, TableName

_S = TypeVar("_S", bound=Struct)


class FileMapping(Struct):
    """A mapping of the file: the nodes of known keys, and valid values by field."""

    node: Node
    path: str
    location: Location
    nodes: dict[str, Node]
    values: dict[str, Any]

    def build(self, model: type[_S], **others: Any) -> _S | None:
        """The model, with `others` for fields that are no keys; None without a valid value for each
        required key. A field `location` is that of the mapping unless given."""
        keys = keys_of(model)
        if any(key.is_required and key.field not in self.values for key in keys):
            return None
        values: dict[str, Any] = {key.field: None for key in keys if key.kind.is_optional}
        if "location" in model.__struct_fields__:
            values["location"] = self.location
        return model(**{**values, **others, **self.values})


def read_record(
    model: type[Struct],
    node: Node | None,
    path: str,
    reading: FileReading,
    later: Collection[str] = (),
) -> FileMapping | None:
    """The mapping at `node` with the keys of the model; values of keys in `later` are not read."""
    keys = keys_of(model)
    required = [name for key in keys if key.is_required for name in key.names]
    optional = [name for key in keys if not key.is_required for name in key.names]
    nodes = reading.record(node, path, required, optional)
    if node is None or nodes is None:
        return None
    record = FileMapping(node, path, reading.location(node), nodes, {})
    for key in keys:
        for name in key.names:
            if name not in nodes or name in later:
                continue
            value = _read_value(key.kind, nodes[name], inside(path, name), reading)
            if value is not None:
                record.values[key.field] = value
    return record


def read_struct(model: type[_S], node: Node | None, path: str, reading: FileReading) -> _S | None:
    record = read_record(model, node, path, reading)
    return None if record is None else record.build(model)


def _read_value(kind: ValueKind, node: Node, path: str, reading: FileReading) -> Any:
    """The value by its declared reader, or else by its type."""
    reader = kind.extra.get("reader")
    if isinstance(reader, str):
        return _READERS[reader](node, path, reading)
    if reader is not None:
        return _read_scalar(kind, node, path, reading)
    option, *others = kind.options
    if option is str:
        return reading.text(node, path)
    if option is bool:
        return _read_switch(node, path, reading)
    if option is int:
        words = [word for other in others for word in get_args(other)]
        return _read_number(node, path, kind, words, reading)
    if get_origin(option) is Literal:
        return reading.choice(node, path, get_args(option))
    if get_origin(option) is tuple:
        inner = kind_of(get_args(option)[0])
        elements = reading.elements(node, path) or ()
        values = [_read_value(inner, element, path, reading) for element in elements]
        return tuple(value for value in values if value is not None)
    if issubclass(option, StrEnum):
        word = reading.choice(node, path, list(option))
        return None if word is None else option(word)
    return read_struct(option, node, path, reading)


def _read_scalar(kind: ValueKind, node: Node, path: str, reading: FileReading) -> Any:
    """A scalar that the declared function reads."""
    expected = kind.extra.get("expected", "text")
    if expected == "text":
        text = reading.text(node, path)
        cell = None if text is None else YamlScalar(text, text)
    else:
        cell = reading.cell(node, path, expected)
    if cell is None:
        return None
    try:
        return kind.extra["reader"](cell)
    except ScalarFault as fault:
        words = fault.message if "{" in fault.message else f"{{path}}: {fault.message}"
        text = written_at(node, cell.written)
        reading.report(node, words.format(path=path, text=text), fault.hint)
        return None


def _read_switch(node: Node, path: str, reading: FileReading) -> bool | None:
    cell = reading.cell(node, path, "`true` or `false`")
    if cell is None:
        return None
    if not isinstance(cell.value, bool):
        reading.report(node, f"{path} must be `true` or `false`", "write it without quotes")
        return None
    return cell.value


def _read_number(
    node: Node, path: str, kind: ValueKind, words: Sequence[str], reading: FileReading
) -> int | str | None:
    """A whole number within its limits, or one of the words."""
    if words:
        listed = " or ".join(f"`{word}`" for word in words)
        cell = reading.cell(node, path, f"a whole number or {listed}")
        if cell is None or cell.value in words:
            return None if cell is None else str(cell.value)
    return reading.whole_number(node, path, kind.limits["le"], kind.extra["hint"])


# Names: of queries and updates, of parameters, of tables.


def is_name(name: str) -> bool:
    """Whether the name is valid for a query or an update."""
    return re.fullmatch(NAME_PATTERN, name) is not None


def is_table_name(name: str) -> bool:
    """Whether the name is valid for a table."""
    return re.fullmatch(TABLE_PATTERN, name) is not None


def refuse_name(
    node: Node, name: str, what: str, reading: FileReading, hint: str = NAME_HINT
) -> None:
    """Report that `name` cannot name `what`."""
    reading.report(node, f"{written_at(node, name)} cannot be the name of {what}", hint)


def _declared_table(written: str, node: Node, path: str, reading: FileReading) -> TableName | None:
    """The table called `written` at `node`; a problem if there is none."""
    if reading.tables is None:
        return written
    result = reading.names.called(written)
    if result is None and written in reading.tables:
        return written
    if result is None:
        problem = f"Table {written_at(node, written)} in {path} is not declared under `tables`"
        known = suggestion(written, reading.tables, "declared tables")
        reading.report(node, problem, known or "add the table there, as `name: {path: ...}`")
    return result


def _read_declared(node: Node, path: str, reading: FileReading) -> TableName | None:
    table = reading.text(node, path)
    within = path.rpartition(".")[0] + "`"
    return None if table is None else _declared_table(table, node, within, reading)


# Paths. Law: a path is relative to the file, so that any working directory works. A URI
# (`s3://...`, `file:///...`) stays as it is; any other path becomes absolute. A store is a folder
# of this machine, so a URI is refused. Nothing is opened.

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def read_path(node: Node | None, path: str, reading: FileReading) -> str | None:
    """The path written at `node`, relative to the folder of the file."""
    written = reading.text(node, path)
    if node is None or written is None:
        return None
    if not written.isprintable():
        reading.report(node, f"{path} contains a line break or a control character", "remove it")
        return None
    return resolve_path(reading.base, written)


def resolve_path(base: Path, written: str) -> str:
    """`written` relative to the folder `base`, which is absolute."""
    return written if _URI.match(written) else os.path.normpath(base / written)


def _read_store(node: Node, path: str, reading: FileReading) -> str | None:
    store = read_path(node, path, reading)
    wrong = None if store is None else store_path_problem(reading.text(node, path) or "")
    if wrong is not None:
        reading.report(node, *wrong)
    return store


# Triggers, and expected changes of a table.


def read_trigger(node: Node | None, path: str, reading: FileReading) -> Trigger | None:
    """The trigger: `commit`, `use`, or a mapping such as `{every: 15m, timezone: Europe/Vienna}`. A
    trigger that is ambiguous or can never occur is a problem."""
    if node is None:
        return None
    known = len(reading.problems)
    if not isinstance(node, MappingNode):
        beside = ", or a mapping such as `fresh_within: 10m`"
        word = reading.choice(node, path, list(SimpleTrigger), beside=beside)
        return None if word is None else Trigger(alone=SimpleTrigger(word))
    entries = reading.entries(node, path) or {}
    for word in SimpleTrigger:
        if word in entries:
            problem = f"`{word}` in {path} cannot be combined with other keys"
            reading.report(entries[word].key, problem, f"write `trigger: {word}`, or remove it")
    if len(reading.problems) > known:
        return None
    record = read_record(Trigger, node, path, reading)
    if record is None:
        return None
    if record.nodes.keys() == entries.keys():
        _check_together(record, reading)
    return record.build(Trigger) if len(reading.problems) == known else None


_BESIDE = {
    "timezone": Trigger.clocks,
    "ready_within": (*Trigger.clocks, "point"),
    "cheap": Trigger.any_of,
}
"""Keys that are valid only with one of others."""


def _check_together(record: FileMapping, reading: FileReading) -> None:
    """Report keys that exclude each other, and keys without those they require."""
    nodes, path = record.nodes, record.path
    if all(name in nodes for name in Trigger.clocks):
        problem = f"`every` and `cron` in {path} cannot be combined"
        reading.report(nodes["cron"], problem, "remove one of them")
    if nodes.keys().isdisjoint(Trigger.any_of):
        hint = f"use at least one of {', '.join(f'`{name}`' for name in Trigger.any_of)}"
        reading.report(record.node, f"{path} does not specify a time or condition", hint)
        return
    for name, others in _BESIDE.items():
        if name in nodes and nodes.keys().isdisjoint(others):
            listed = " or ".join(f"`{other}`" for other in others)
            problem = f"`{name}` in {path} requires {listed}"
            reading.report(nodes[name], problem, "add one of them, or remove it")


def _read_changes(
    node: Node, path: str, reading: FileReading
) -> tuple[ExpectedChanges, ...] | None:
    """The expected changes, none for `never`."""
    if isinstance(node, ScalarNode):
        written = reading.text(node, path)
        if written is None or written == "never":
            return None if written is None else ()
        hint = (
            "write `changes: never`, or for example `changes: {every: 1h, rows: 200, deletes: 5%}`"
        )
        reading.report(node, f"{path} must be `never`, a mapping, or a list of mappings", hint)
        return None
    nodes = reading.elements(node, path) if isinstance(node, SequenceNode) else [node]
    if nodes is not None and not nodes:
        hint = "write `changes: never`, or describe the expected changes"
        reading.report(node, f"{path} is empty", hint)
    read = [_read_expectation(element, path, reading) for element in nodes or ()]
    specs = tuple(spec for spec in read if spec is not None)
    return specs if specs and len(specs) == len(read) else None


def _read_expectation(node: Node, path: str, reading: FileReading) -> ExpectedChanges | None:
    known = len(reading.problems)
    record = read_record(ExpectedChanges, node, path, reading)
    if record is None:
        return None
    if not record.nodes and len(reading.problems) == known:
        reading.report(node, f"{path} is empty", "write `every`, `from` or `until`")
    for name, needed in (("rows", "every"), ("deletes", "rows")):
        if name in record.nodes and needed not in record.nodes:
            problem = f"{inside(path, name)} needs `{needed}`"
            reading.report(record.nodes[name], problem, f"add `{needed}:`")
    since, until = record.values.get("since"), record.values.get("until")
    if since is not None and until is not None and until <= since:
        problem = f"{inside(path, 'until')} must be later than `from`"
        hint = "the expectation applies from `from` until before `until`"
        reading.report(record.nodes["until"], problem, hint)
    return record.build(ExpectedChanges) if len(reading.problems) == known else None


def _read_expiry(node: Node, path: str, reading: FileReading) -> ExpirySpec | None:
    record = read_record(ExpirySpec, node, path, reading)
    if record is None or "column" not in record.nodes:
        return None
    return record.build(ExpirySpec, location=reading.location(record.nodes["column"]))


# The section `tables`. Law: an entry with the path and options of an earlier one gives that table
# another name, unless it has its own `partitions` or `expiry`. Such an entry is a separate source,
# so that a table can have several partitions, and be read with and without its expired rows. No
# name refers to two tables.

_NAME_HINT = (
    "use one to three parts separated by dots, each with letters, digits and `_` and no digit "
    "first; put backticks around any other part. `path` can be anything"
)


def _read_part(node: Node, path: str, reading: FileReading) -> str | None:
    """A default for one part of a table's name."""
    written = reading.text(node, path)
    if written is None:
        return None
    parts = name_parts(written)
    if not is_table_name(written) or parts is None or len(parts) != 1:
        hint = "write one name: `catalog: main` and `schema: shop` make `sales` main.shop.sales"
        reading.report(node, f"{path} cannot be {written_at(node, written)}", hint)
        return None
    return parts[0]


def read_tables(root: FileMapping, reading: FileReading) -> dict[TableName, TableSpec]:
    """The valid tables. Adds all names to `reading`, including those of invalid tables."""
    node = root.nodes.get("tables")
    entries = reading.entries(node, "`tables`")
    if node is None or entries is None:
        return {}
    if not entries:
        reading.report(node, "`tables` is empty", "add at least one Delta table")
    catalog = root.values.get("catalog", SPARK_CATALOG)
    schema = root.values.get("schema", SPARK_SCHEMA)
    names: dict[FullName, TableName] = {}
    reading.names = TableNames(names, {}, catalog, schema)
    paths: dict[str, TableName] = {}
    partitions = root.nodes.get("partitions")
    # `read_partitions` reports invalid keys.
    pairs = partitions.value if isinstance(partitions, MappingNode) else ()
    partitioned = {key.value for key, _ in pairs if isinstance(key, ScalarNode)}
    result: dict[TableName, TableSpec] = {}
    for name, entry in entries.items():
        spec, others = _read_table(name, entry, root, reading)
        same = None
        if spec is not None and name not in partitioned:
            earlier = (table for table in result.values() if _source(table) == _source(spec))
            same = next(earlier, None)
        table = name if same is None else same.name
        for name_node, text in ((entry.key, name), *others):
            _add_name(names, name_node, text, table, reading)
        if same is not None and spec is not None:
            coming = _same_changes(same, spec, entry, reading)
            result[table] = replace(same, names=(*same.names, name, *spec.names), coming=coming)
        elif spec is not None:
            result[name] = spec
            paths.setdefault(path_key(spec.path), name)
    reading.names = TableNames(names, paths, catalog, schema)
    reading.tables = tuple(entries)
    return result


def _add_name(
    names: dict[FullName, TableName],
    node: Node,
    written: str,
    table: TableName,
    reading: FileReading,
) -> None:
    """Register the name for the table, or report a problem."""
    full = reading.names.full(name_parts(written) or ())
    if not is_table_name(written) or full is None:
        refuse_name(node, written, "a table", reading, _NAME_HINT)
        return
    known = names.setdefault(full, table)
    if known != table:
        reading.report(
            node,
            f"Tables {shown(known)} and {shown(table)} have the same name"
            + ("" if written == table else f" {shown(written.replace('`', ''))}"),
            "rename one; names are not case-sensitive in Spark",
        )


def _read_table(
    name: str, entry: MappingEntry, root: FileMapping, reading: FileReading
) -> tuple[TableSpec | None, Sequence[tuple[Node, str]]]:
    """The table, and its other names with their nodes."""
    path = inside("`tables`", name)
    record = read_record(TableSpec, entry.value, path, reading)
    if record is None:
        return None, ()
    names_path = inside(path, "names")
    nodes = reading.elements(record.nodes.get("names"), names_path) or []
    texts = [(node, reading.text(node, names_path)) for node in nodes]
    others = [(node, text) for node, text in texts if text is not None]
    folder = record.values.get("path", "")
    if folder.startswith(CATALOG_SCHEME):
        # The name in the catalog is one of its names.
        others.append((record.nodes["path"], folder.removeprefix(CATALOG_SCHEME)))
    record.values["names"] = tuple(text for _, text in others)
    spec = record.build(
        TableSpec,
        name=name,
        location=reading.location(entry.key),
        storage_options=Secrets(),
        credentials=root.values.get("credentials"),
    )
    return spec, others


def _source(spec: TableSpec) -> tuple[object, ...]:
    """Equal for entries that are one source."""
    expiry = None if spec.expiry is None else (spec.expiry.column.lower(), spec.expiry.after)
    return path_key(spec.path), spec.storage_options, spec.ambient, spec.clone_of, expiry


def _same_changes(
    table: TableSpec, other: TableSpec, entry: MappingEntry, reading: FileReading
) -> tuple[ExpectedChanges, ...] | None:
    """The changes of a table, which must be the same in two entries for it."""
    if other.coming is None or table.coming is None:
        return table.coming if other.coming is None else other.coming
    if table.coming != other.coming:
        reading.report(
            entry.key,
            f"Tables {shown(table.name)} and {shown(other.name)} are the same table, with "
            "different `changes`",
            "write `changes` once",
        )
    return table.coming


# The section `views`. Law: no view has the name of a table or of another view. The SQL is not read.


def read_views(node: Node | None, reading: FileReading) -> Mapping[FullName, ViewSpec]:
    """The valid views, by their full names, in file order."""
    result: dict[FullName, ViewSpec] = {}
    for name, entry in (reading.entries(node, "`views`") or {}).items():
        full = reading.names.full(name_parts(name) or ())
        if not is_table_name(name):
            hint = "use letters, digits and `_`, in at most three parts separated by dots"
            refuse_name(entry.key, name, "a view", reading, hint)
        sql = _read_sql(entry.value, inside("`views`", name), reading)
        if full is None or sql is None:
            continue
        same = result[full].name if full in result else reading.names.tables.get(full)
        if same is not None:
            problem = f"View {shown(name)} has the same name as {shown(same)}"
            hint = "rename one; names are not case-sensitive in Spark"
            reading.report(entry.key, problem, hint)
        result[full] = ViewSpec(name, sql[0], reading.location(entry.key), sql[1])
    return result


def _read_sql(node: Node, path: str, reading: FileReading) -> tuple[str, SqlOrigin] | None:
    """The SQL text and its position."""
    resolved = reading.resolved_text(node, path)
    if resolved is None or not isinstance(node, ScalarNode):
        return None
    return resolved.text, origin_of(node, resolved, reading.lines)


# The section `partitions`. Law: boundaries strictly increase and have one type. Text may represent
# decimals, so it may increase as numbers or by code point; with the column's type,
# `sketch.sketch` decides.


def read_partitions(node: Node | None, reading: FileReading) -> tuple[PartitionSpec, ...]:
    """The valid candidates, in file order."""
    result: dict[tuple[TableName, str], PartitionSpec] = {}
    for text, entry in (reading.entries(node, "`partitions`") or {}).items():
        table = _declared_table(text, entry.key, "`partitions`", reading)
        path = inside("`partitions`", text)
        for column, inner in (reading.columns(entry.value, path) or {}).items():
            spec = _read_partition(table or text, column, inner, inside(path, column), reading)
            if table is None or spec is None:
                continue
            if (table, column.lower()) in result:
                problem = f"Column {shown(column)} of table {shown(table)} is partitioned twice"
                hint = "remove one; all names of a table refer to the same table"
                reading.report(inner.key, problem, hint)
            result[table, column.lower()] = spec
    return tuple(result.values())


def _read_partition(
    table: str, column: str, entry: MappingEntry, path: str, reading: FileReading
) -> PartitionSpec | None:
    record = read_record(PartitionSpec, entry.value, path, reading)
    if record is None:
        return None
    if len(record.nodes) != 1:
        hint = "write `boundaries: [601, 1001]` or `ranges: 16`"
        reading.report(entry.key, f"{path} must have either `boundaries` or `ranges`", hint)
    if not record.values:
        return None
    record.location = reading.location(entry.key)
    is_old_key = "fragments" in record.nodes
    return record.build(PartitionSpec, table=table, column=column, is_old_key=is_old_key)


def _read_boundaries(
    node: Node, path: str, reading: FileReading
) -> tuple[BoundaryLiteral, ...] | None:
    elements = reading.elements(node, path)
    if elements is None:
        return None
    if not 1 <= len(elements) <= MAX_BOUNDARIES:
        hint = "n boundaries make n + 1 ranges"
        reading.report(node, f"{path} must have from 1 to {MAX_BOUNDARIES} values", hint)
        return None
    read = [_read_boundary(element, path, reading) for element in elements]
    values = tuple(value for value in read if value is not None)
    if len(values) < len(read):
        return None
    kinds = [_order_kind(value) for value in values]
    other = next((index for index, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        problem = f"Values of {path} must be of one type, not {kinds[0]} and {kinds[other]}"
        reading.report(elements[other], problem, "write all of them with quotes, or all without")
        return None
    descents = [_first_descent(ordered) for ordered in (values, _as_decimals(values)) if ordered]
    if None in descents:
        return values
    index = descents[-1]
    assert index is not None
    problem = f"Values of {path} must increase, but number {index + 1} does not"
    reading.report(elements[index], problem, "sort the boundaries and remove duplicates")
    return None


def _read_boundary(node: Node, path: str, reading: FileReading) -> BoundaryLiteral | None:
    cell = reading.cell(node, f"A value of {path}", "a number, text or a date")
    if cell is None:
        return None
    value = cell.value
    if value is None or isinstance(value, bool):
        kind = kind_text(value)
        problem = f"A value of {path} must be a number, text or a date, not {kind}"
        hint = "NULL always has its own range" if value is None else "put quotes around text"
        reading.report(node, problem, hint)
        return None
    if isinstance(value, float) and not math.isfinite(value):
        hint = "remove it; the first range has no lower bound and the last one no upper bound"
        reading.report(node, f"A value of {path} is not finite", hint)
        return None
    return value


def _order_kind(value: BoundaryLiteral) -> str:
    match value:
        case int() | float():
            return "numbers"
        case str():
            return "text"
        case datetime():
            return "timestamps" if value.tzinfo is None else "timestamps with a time zone"
        case date():
            return "dates"


def _first_descent(values: Sequence[Any]) -> int | None:
    pairs = enumerate(pairwise(values), start=1)
    return next((position for position, (low, high) in pairs if not low < high), None)


def _as_decimals(values: Sequence[BoundaryLiteral]) -> list[Decimal]:
    """The values as decimals if all of them are texts of a finite number; else none."""
    try:
        numbers = [Decimal(value.strip()) for value in values if isinstance(value, str)]
    except InvalidOperation:
        return []
    is_finite = all(number.is_finite() for number in numbers)
    return numbers if is_finite and len(numbers) == len(values) else []


# The sections `queries` and `defaults`. Law: a default that cannot be combined with a setting of
# the query is ignored. A parameter has the type of its YAML value; as in SQL, a number with a point
# and no exponent is an exact decimal.

_WITH_SKETCH = "it is stored with the sketch; remove one of the two"
_OF_ALL = "absorption uses all derivations; write `lineage: all` or remove it"
_EXCLUDED = {
    "answer": {
        f"sketch: {NO_SKETCH}": _WITH_SKETCH,
        f"lineage: {LineageMode.WITNESS}": (
            "a materialized result needs all rows, not only witnesses; remove one of the two"
        ),
    },
    "provenance": {
        f"sketch: {NO_SKETCH}": _WITH_SKETCH,
        f"lineage: {LineageMode.WITNESS}": _OF_ALL,
        f"lineage: {LineageMode.ANSWER}": _OF_ALL,
    },
    "state": {
        f"join: {join}": "`join` already determines the state to keep; remove one of the two"
        for join in JoinStrategy
        if join is not JoinStrategy.AUTO
    },
}
"""What a key cannot be combined with, and the hint."""


def read_queries(
    node: Node | None, defaults: Mapping[str, Any], reading: FileReading
) -> dict[str, QuerySpec]:
    """The valid queries, in file order, with defaults applied."""
    entries = reading.entries(node, "`queries`")
    if node is None or entries is None:
        return {}
    if not entries:
        reading.report(node, "`queries` is empty", "write at least one query")
    result: dict[str, QuerySpec] = {}
    for name, entry in entries.items():
        if not is_name(name):
            refuse_name(entry.key, name, "a query", reading)
        spec = _read_query(name, entry, defaults, reading)
        if spec is not None:
            result[name] = spec
    return result


def _read_query(
    name: str, entry: MappingEntry, defaults: Mapping[str, Any], reading: FileReading
) -> QuerySpec | None:
    record = read_record(QuerySpec, entry.value, inside("`queries`", name), reading)
    if record is None:
        return None
    nodes = record.nodes
    values = {name: value for name, value in defaults.items() if name not in nodes} | record.values
    settings = {f"{key}: {values.get(key)}" for key in ("sketch", "lineage", "join")}
    for key, excluded in _EXCLUDED.items():
        for other in settings & excluded.keys() if values.get(key) else ():
            values.pop(key, None)
            if key in nodes:
                problem = f"{inside(record.path, key)} cannot be combined with `{other}`"
                reading.report(nodes[key], problem, excluded[other])
    sql, origin = values.pop("sql", ("", None))
    params = values.get("params", {})
    is_sketched = values.get("sketch") != NO_SKETCH
    values |= {
        "params": {n: v for n, v in params.items() if not isinstance(v, ParameterMoves)},
        "moves": {n: v for n, v in params.items() if isinstance(v, ParameterMoves)},
        "sketch": values.get("sketch", {}) if is_sketched else {},
        "is_sketched": is_sketched,
    }
    if origin is None:
        return None
    return QuerySpec(
        name=name,
        location=reading.location(entry.key),
        sql=sql,
        sql_origin=origin,
        lineage_place=reading.location(nodes["lineage"]) if "lineage" in nodes else None,
        **values,
    )


def _read_provenance(node: Node, path: str, reading: FileReading) -> ProvenanceSpec | None:
    if isinstance(node, MappingNode):
        return read_struct(ProvenanceSpec, node, path, reading)
    also = ", or a mapping with `kind`, `ship` and `nodes`"
    word = reading.choice(node, path, [ProvenanceSpec().kind], beside=also)
    return None if word is None else ProvenanceSpec()


def _read_params(
    node: Node, path: str, reading: FileReading
) -> Mapping[str, ParameterValue | ParameterMoves]:
    """The values of parameters, and how often those without a value change."""
    params: dict[str, ParameterValue | ParameterMoves] = {}
    for name, entry in (reading.entries(node, path) or {}).items():
        if re.fullmatch(IDENTIFIER_PATTERN, name) is None:
            hint = "use letters, digits and `_`, and do not start with a digit"
            refuse_name(entry.key, name, "a parameter", reading, hint)
        value = _read_param(entry.value, inside(path, name), reading)
        if value is not None:
            params[name] = value
    return params


def _read_param(
    node: Node, path: str, reading: FileReading
) -> ParameterValue | ParameterMoves | None:
    if isinstance(node, MappingNode):
        moving = read_struct(MovingParameter, node, path, reading)
        return None if moving is None else moving.moves
    cell = reading.cell(node, path, "a single value")
    if cell is None:
        return None
    value = cell.value
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        # NULL, NaN and infinity have no literal.
        hint = "write a number, text, a date, a timestamp, or true or false"
        reading.report(node, f"{path} has no value for the SQL", hint)
        return None
    is_exact = isinstance(value, float) and "e" not in cell.written.lower()
    return Decimal(cell.written) if is_exact else value


def _read_sketch(node: Node, path: str, reading: FileReading) -> Mapping[str, str] | str | None:
    """The column of each table, or `NO_SKETCH`."""
    if isinstance(node, ScalarNode):
        cell = reading.cell(node, path, "a mapping")
        if cell is None or cell.value == NO_SKETCH:
            return None if cell is None else NO_SKETCH
        hint = "write `table: column`, or `none` for a query without a sketch"
        reading.report(node, f"{path} must be a mapping, or `{NO_SKETCH}`", hint)
        return None
    sketch: dict[str, str] = {}
    for table, entry in (reading.entries(node, path) or {}).items():
        column = reading.text(entry.value, inside(path, table))
        result = _declared_table(table, entry.key, path, reading)
        if result in sketch:
            hint = "remove one; all names of a table refer to the same table"
            reading.report(entry.key, f"Table {shown(table)} appears twice in {path}", hint)
        if result is not None and column is not None:
            sketch[result] = column
    return sketch


# The section `updates`. Law: each update has a unique name and exactly one action. Values of rows
# have YAML's types; expressions are SQL text.


def read_updates(node: Node | None, reading: FileReading) -> tuple[UpdateSpec, ...]:
    """The valid updates, in file order."""
    result: list[UpdateSpec] = []
    first_line: dict[str, int] = {}
    for number, element in enumerate(reading.elements(node, "`updates`") or [], start=1):
        path = f"`updates[{number}]`"
        record = read_record(UpdateEntry, element, path, reading)
        if record is None:
            continue
        count = len(record.nodes.keys() - {"name"})
        if count != 1:
            problem = f"{path} must have exactly one of `insert`, `delete`, `update`"
            hint = "make a second update for a second action" if count else "add one of them"
            reading.report(element, problem, hint)
        name = record.values.pop("name", None)
        if name is None:
            continue
        name_node = record.nodes["name"]
        if name in first_line:
            hint = f"give each update its own name; the first is on line {first_line[name]}"
            reading.report(name_node, f"Update {written_at(name_node, name)} appears twice", hint)
        first_line.setdefault(name, reading.location(name_node).line)
        actions = record.values.values()
        result += [replace(spec, name=name, location=record.location) for spec in actions]
    return tuple(result)


def _read_insert(node: Node, path: str, reading: FileReading) -> InsertSpec | None:
    record = read_record(InsertSpec, node, path, reading)
    if record is None:
        return None
    if ("rows" in record.nodes) == ("file" in record.nodes):
        hint = "write `rows: [{column: value}]` or `file: batch.parquet`"
        reading.report(node, f"{path} must have either `rows` or `file`", hint)
    return record.build(InsertSpec)


def _read_update(node: Node, path: str, reading: FileReading) -> ChangeSpec | None:
    record = read_record(ChangeSpec, node, path, reading)
    # A condition that could not be read must not turn into an update of every row.
    if record is None or ("where" in record.nodes and "where" not in record.values):
        return None
    assignments = record.values.get("assignments", {})
    if assignments:
        record.values["assignments"] = {column: text for column, (text, _) in assignments.items()}
    places = {column: location for column, (_, location) in assignments.items()}
    return record.build(ChangeSpec, places=places)


def _read_rows(
    node: Node, path: str, reading: FileReading
) -> tuple[Mapping[str, CellValue], ...] | None:
    elements = reading.elements(node, path)
    if elements is None:
        return None
    if not elements:
        reading.report(node, f"{path} is empty", "write at least one row")
        return None
    rows: list[Mapping[str, CellValue]] = []
    for number, element in enumerate(elements, start=1):
        row_path = f"{path[:-1]}[{number}]`"
        columns = reading.columns(element, row_path) or {}
        cells = {
            column: reading.cell(entry.value, inside(row_path, column), "a single value")
            for column, entry in columns.items()
        }
        rows.append({column: cell.value for column, cell in cells.items() if cell is not None})
    return tuple(rows)


def _read_assignments(
    node: Node, path: str, reading: FileReading
) -> Mapping[str, tuple[str, Location]]:
    """The expression of each column, and its position."""
    assignments: dict[str, tuple[str, Location]] = {}
    for column, entry in (reading.columns(node, path) or {}).items():
        column_path = inside(path, column)
        cell = reading.cell(entry.value, column_path, "an SQL expression")
        if cell is None:
            continue
        # A bare number or boolean is already an SQL expression; a bare date is not.
        if cell.value is None or not cell.written.strip():
            reading.report(
                entry.value, f"{column_path} is empty", "write `NULL` in quotes for NULL"
            )
        elif not isinstance(cell.value, str | int | float):
            hint = "write it as SQL in quotes: \"DATE '2022-01-01'\""
            reading.report(
                entry.value, f"{column_path} must be an SQL expression, not a date", hint
            )
        else:
            assignments[column] = cell.written, reading.location(entry.value)
    return assignments


def read_version(node: Node | None, path: str, reading: FileReading) -> None:
    """Report a problem if the version of the file format is unknown."""
    cell = reading.cell(node, path, "the number 1")
    if node is None or cell is None:
        return
    if isinstance(cell.value, bool) or not isinstance(cell.value, int) or cell.value != 1:
        reading.report(node, f"{path} must be the number 1", "write `version: 1`")


def _read_settings(node: Node, path: str, reading: FileReading) -> Secrets:
    """Any keys; values become text as written, such as `8`, `false` and `4g`."""
    settings = Secrets()
    for name, entry in (reading.entries(node, path) or {}).items():
        value_path = inside(path, name)
        cell = reading.cell(entry.value, value_path, "text, a number, or true or false")
        if cell is not None and cell.value is None:
            reading.report(entry.value, f"{value_path} is empty", "write a value, or ''")
        elif cell is not None:
            is_switch = isinstance(cell.value, bool)
            settings[name] = cell.written.lower() if is_switch else cell.written
    return settings


_SPARK_NAMES = """
    cores.max default.parallelism driver.cores driver.extraClassPath driver.extraJavaOptions
    driver.host driver.maxResultSize driver.memory driver.memoryOverhead
    dynamicAllocation.enabled dynamicAllocation.maxExecutors dynamicAllocation.minExecutors
    eventLog.dir eventLog.enabled executor.cores executor.extraClassPath
    executor.extraJavaOptions executor.instances executor.memory executor.memoryOverhead
    jars jars.excludes jars.ivy jars.packages jars.repositories kryoserializer.buffer.max
    local.dir master memory.fraction memory.offHeap.enabled memory.offHeap.size serializer
    sql.adaptive.coalescePartitions.enabled sql.adaptive.enabled sql.adaptive.skewJoin.enabled
    sql.ansi.enabled sql.autoBroadcastJoinThreshold sql.broadcastTimeout sql.caseSensitive
    sql.catalogImplementation sql.extensions sql.files.maxPartitionBytes sql.session.timeZone
    sql.shuffle.partitions sql.sources.partitionOverwriteMode sql.timestampType
    sql.warehouse.dir ui.enabled ui.port
"""
_SPARK_SETTINGS = {f"spark.{name}".lower(): f"spark.{name}" for name in _SPARK_NAMES.split()}
"""Common settings, for suggestions on a misspelled one."""
_ALIKE = 0.93


def _read_spark_settings(node: Node, path: str, reading: FileReading) -> Secrets:
    settings = _read_settings(node, path, reading)
    for name in settings:
        close = get_close_matches(name.lower(), _SPARK_SETTINGS, 1, _ALIKE)
        if close and _SPARK_SETTINGS[close[0]] != name:
            reading.report(
                node,
                f"Spark has no setting `{name}`, and would ignore it",
                f"did you mean `{_SPARK_SETTINGS[close[0]]}`?",
            )
    return settings


_READERS: Mapping[str, Callable[[Node, str, FileReading], Any]] = {
    "assignments": _read_assignments,
    "boundaries": _read_boundaries,
    "changes": _read_changes,
    "declared": _read_declared,
    "expiry": _read_expiry,
    "insert": _read_insert,
    "params": _read_params,
    "part": _read_part,
    "path": read_path,
    "provenance": _read_provenance,
    "rows": _read_rows,
    "settings": _read_settings,
    "sketch": _read_sketch,
    "spark_settings": _read_spark_settings,
    "sql": _read_sql,
    "store": _read_store,
    "trigger": read_trigger,
    "update": _read_update,
    "version": read_version,
}
"""The readers that keys name."""

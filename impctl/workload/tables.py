"""The section `tables` of the workload file, with the default catalog and schema beside it.

Law: a table is one source, however many names it has: an entry with the path and options of an
earlier one gives that table another name. Only an entry that has `partitions` or an `expiry` of its
own is a source of its own, so that one table can have several divisions side by side, and be read
with its expired rows and without. No name stands for two tables.
Out of scope: what stands at a path (`tables`), what a name in SQL means (`sql.names`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from yaml.nodes import MappingNode, Node, ScalarNode

from impctl.data.schema import name_parts
from impctl.sql.names import (
    CATALOG_SCHEME,
    SPARK_CATALOG,
    SPARK_SCHEMA,
    FullName,
    TableNames,
    path_key,
)
from impctl.types import TableName
from impctl.values import dataclass
from impctl.workload.coming import read_changes, read_duration
from impctl.workload.models import ComingSpec, ExpirySpec, TableSpec
from impctl.workload.names import Declared, DeclaredTables, is_table_name
from impctl.workload.paths import read_path
from impctl.workload.reading import Entry, FileReading, inside, shown, written_at

CREDENTIALS = ("options", "ambient")
"""Where those of object stores come from: `storage_options` alone, or the surroundings as well."""

_NAME_HINT = (
    "use one to three parts separated by dots, each with letters, digits and `_` and no digit "
    "first; put backticks around any other part. `path` can be anything"
)


@dataclass(slots=True)
class _Names:
    """The names found so far."""

    catalog: str
    schema: str
    tables: dict[FullName, TableName] = field(default_factory=dict)
    paths: dict[str, TableName] = field(default_factory=dict)

    def full(self, written: str) -> FullName | None:
        table_names = TableNames({}, catalog=self.catalog, schema=self.schema)
        return table_names.full(name_parts(written) or ())

    def add(self, node: Node, written: str, table: TableName, reading: FileReading) -> None:
        """Let the name stand for the table; a problem noted where it cannot."""
        full = self.full(written)
        if not is_table_name(written) or full is None:
            reading.report(
                node, f"{written_at(node, written)} cannot be the name of a table", _NAME_HINT
            )
            return
        known = self.tables.setdefault(full, table)
        if known != table:
            reading.report(
                node,
                f"Tables {shown(known)} and {shown(table)} have the same name"
                + ("" if written == table else f" {shown(written.replace('`', ''))}"),
                "rename one; names are not case-sensitive in Spark",
            )

    def done(self) -> TableNames:
        return TableNames(self.tables, self.paths, self.catalog, self.schema)


def read_tables(
    fields: Mapping[str, Node], base: Path, reading: FileReading
) -> tuple[Declared, dict[TableName, TableSpec]]:
    """Names as declared, those of tables with a problem too, and the tables that could be read."""
    catalog = _read_default(fields.get("catalog"), "`catalog`", SPARK_CATALOG, reading)
    schema = _read_default(fields.get("schema"), "`schema`", SPARK_SCHEMA, reading)
    ambient = _is_ambient(fields.get("credentials"), "`credentials`", reading, otherwise=False)
    node = fields.get("tables")
    entries = reading.entries(node, "`tables`")
    if node is None or entries is None:
        return None, {}
    if not entries:
        reading.report(node, "`tables` is empty", "add at least one Delta table")
    names = _Names(catalog, schema)
    divided = _keys(fields.get("partitions"))
    result: dict[TableName, TableSpec] = {}
    for name, entry in entries.items():
        spec, others = _read_table(name, entry, base, reading, ambient=ambient)
        same = None if spec is None or name in divided else _same_table(spec, result)
        table = name if same is None else same.name
        for place, written in ((entry.key, name), *others):
            names.add(place, written, table, reading)
        if same is not None and spec is not None:
            coming = _same_changes(same, spec, entry, reading)
            result[table] = replace(same, names=(*same.names, name, *spec.names), coming=coming)
        elif spec is not None:
            result[name] = spec
            names.paths.setdefault(path_key(spec.path), name)
    return DeclaredTables(tuple(entries), names.done()), result


def _keys(node: Node | None) -> frozenset[str]:
    """The keys of a mapping; its reader tells what is wrong with them."""
    pairs = node.value if isinstance(node, MappingNode) else ()
    return frozenset(key.value for key, _ in pairs if isinstance(key, ScalarNode))


def _same_table(spec: TableSpec, result: Mapping[TableName, TableSpec]) -> TableSpec | None:
    """The table of an earlier entry that is this one."""
    for other in result.values():
        is_there = path_key(other.path) == path_key(spec.path)
        if is_there and _how(other) == _how(spec):
            return other
    return None


def _how(spec: TableSpec) -> tuple[object, ...]:
    """What two entries for one path must share to be one source."""
    lives = None if spec.expiry is None else (spec.expiry.column.lower(), spec.expiry.after)
    return spec.storage_options, spec.ambient, spec.clone_of, lives


def _same_changes(
    table: TableSpec, other: TableSpec, entry: Entry, reading: FileReading
) -> tuple[ComingSpec, ...] | None:
    """What two entries for one table say of its changes, which must be the same."""
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


def _read_default(node: Node | None, where: str, otherwise: str, reading: FileReading) -> str:
    written = reading.text(node, where)
    if node is None or written is None:
        return otherwise
    parts = name_parts(written)
    if not is_table_name(written) or parts is None or len(parts) != 1:
        reading.report(
            node,
            f"{where} cannot be {written_at(node, written)}",
            "write one name: `catalog: main` and `schema: shop` make `sales` main.shop.sales",
        )
        return otherwise
    return parts[0]


def _is_ambient(node: Node | None, where: str, reading: FileReading, *, otherwise: bool) -> bool:
    """Whether `credentials` there says `ambient`; `otherwise` where nothing is said."""
    said = reading.choice(node, where, CREDENTIALS)
    return otherwise if said is None else said == "ambient"


def _read_table(
    name: str, entry: Entry, base: Path, reading: FileReading, *, ambient: bool
) -> tuple[TableSpec | None, Sequence[tuple[Node, str]]]:
    """The table and its other names, each with its place."""
    where = inside("`tables`", name)
    fields = reading.record(
        entry.value,
        where,
        ("path",),
        ("storage_options", "names", "credentials", "changes", "expiry", "clone_of"),
    )
    if fields is None:
        return None, ()
    path = read_path(fields.get("path"), inside(where, "path"), base, reading)
    options = reading.settings(fields.get("storage_options"), inside(where, "storage_options"))
    written = fields.get("credentials")
    own = _is_ambient(written, inside(where, "credentials"), reading, otherwise=ambient)
    coming = read_changes(fields.get("changes"), inside(where, "changes"), reading)
    expiry = _read_expiry(fields.get("expiry"), inside(where, "expiry"), reading)
    place = inside(where, "clone_of")
    roots = [
        read_path(node, place, base, reading)
        for node in reading.elements(fields.get("clone_of"), place) or []
    ]
    clone_of = tuple(root for root in roots if root is not None)
    place = inside(where, "names")
    nodes = reading.elements(fields.get("names"), place) or []
    texts = [(node, reading.text(node, place)) for node in nodes]
    others = [(node, text) for node, text in texts if text is not None]
    if path is None:
        return None, others
    if path.startswith(CATALOG_SCHEME):
        # What the catalog calls the table is a name of it, and checked as one.
        others.append((fields["path"], path.removeprefix(CATALOG_SCHEME)))
    at, names = reading.at(entry.key), tuple(text for _, text in others)
    spec = TableSpec(name, path, options or {}, at, names, own, coming, expiry, clone_of)
    return spec, others


def _read_expiry(node: Node | None, where: str, reading: FileReading) -> ExpirySpec | None:
    fields = None if node is None else reading.record(node, where, ("column", "after"), ())
    if node is None or fields is None:
        return None
    column = reading.text(fields.get("column"), inside(where, "column"))
    after = read_duration(fields.get("after"), inside(where, "after"), reading)
    if column is None or after is None:
        return None
    return ExpirySpec(column, max(1, round(after * 1e6)), reading.at(fields["column"]))

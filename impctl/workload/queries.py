"""The section `queries` of the workload file.

Law: the SQL text is taken as it stands, with its place; it is read by `plan` only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from yaml.nodes import Node, ScalarNode

from impctl.workload.models import MaintainMode, Policy, QuerySpec
from impctl.workload.reading import Entry, Reading, shown, suggestion
from impctl.workload.sql_location import origin_of

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
NAME_HINT = "use letters, digits, `_`, `-` and `.`, at most 128 characters"


def read_queries(node: Node, tables: Collection[str], reading: Reading) -> dict[str, QuerySpec]:
    """The queries that could be read, in file order."""
    entries = reading.entries(node, "`queries`")
    if entries is None:
        return {}
    if not entries:
        reading.report(node, "`queries` is empty", "write at least one query")
    found: dict[str, QuerySpec] = {}
    for name, entry in entries.items():
        if not is_name(name):
            reading.report(entry.key, f"{shown(name)} cannot name a query", NAME_HINT)
            continue
        spec = _read_query(name, entry, tables, reading)
        if spec is not None:
            found[name] = spec
    return found


def is_name(name: str) -> bool:
    """Whether a query or an update may be called so."""
    return len(name) <= 128 and NAME.fullmatch(name) is not None


def check_table(
    name: str, node: Node, tables: Collection[str], path: str, reading: Reading
) -> bool:
    """Whether `name`, written at `node`, is a declared table; a problem if not."""
    if name in tables:
        return True
    # The node's own text, not the resolved one: a variable's value must not be shown.
    written = node.value if isinstance(node, ScalarNode) else name
    reading.report(
        node,
        f"Table {shown(written)} in {path} is not declared under `tables`",
        suggestion(name, list(tables), "declared tables"),
    )
    return False


def _read_query(
    name: str, entry: Entry, tables: Collection[str], reading: Reading
) -> QuerySpec | None:
    path = f"`queries.{name}`"
    fields = reading.record(entry.value, path, ("sql",), ("sketch", "policy", "maintain"))
    if fields is None:
        return None
    policy, maintain = Policy.AUTO.value, MaintainMode.LAZY.value
    sketch: Mapping[str, str] = {}
    if "sketch" in fields:
        sketch = _read_sketch(fields["sketch"].value, f"`queries.{name}.sketch`", tables, reading)
    if "policy" in fields:
        where = f"`queries.{name}.policy`"
        policy = reading.choice(fields["policy"].value, where, list(Policy)) or policy
    if "maintain" in fields:
        where = f"`queries.{name}.maintain`"
        maintain = reading.choice(fields["maintain"].value, where, list(MaintainMode)) or maintain
    sql_node = fields["sql"].value
    sql = reading.resolved_text(sql_node, f"`queries.{name}.sql`")
    if sql is None or not isinstance(sql_node, ScalarNode):
        return None
    return QuerySpec(
        name=name,
        sql=sql.text,
        sketch=sketch,
        policy=Policy(policy),
        maintain=MaintainMode(maintain),
        location=reading.at(entry.key),
        sql_origin=origin_of(sql_node, sql, reading.lines),
    )


def _read_sketch(
    node: Node, path: str, tables: Collection[str], reading: Reading
) -> Mapping[str, str]:
    sketch: dict[str, str] = {}
    entries = reading.entries(node, path) or {}
    for table, entry in entries.items():
        is_declared = check_table(table, entry.key, tables, path, reading)
        column = reading.text(entry.value, f"{path[:-1]}.{table}`")
        if is_declared and column is not None:
            sketch[table] = column
    return sketch

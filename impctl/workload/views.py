"""The section `views` of the workload file: names for SELECT texts that queries may read.

Law: no view is called as a table or another view is. The texts are taken as they stand.
Out of scope: what they mean, and whether views need each other in a circle (`sql.views`).
"""

from __future__ import annotations

from collections.abc import Mapping

from yaml.nodes import Node, ScalarNode

from impctl.data.schema import name_parts
from impctl.sql.names import FullName
from impctl.workload.models import ViewSpec
from impctl.workload.names import DeclaredTables, is_table_name
from impctl.workload.reading import FileReading, inside, shown, written_at
from impctl.workload.sql_location import origin_of


def read_views(
    node: Node | None, tables: DeclaredTables | None, reading: FileReading
) -> Mapping[FullName, ViewSpec]:
    """The views that could be read, by their whole names, in file order."""
    result: dict[FullName, ViewSpec] = {}
    for name, entry in (reading.entries(node, "`views`") or {}).items():
        full = None if tables is None else tables.names.full(name_parts(name) or ())
        if not is_table_name(name):
            hint = "use letters, digits and `_`, in at most three parts separated by dots"
            reading.report(
                entry.key, f"{written_at(entry.key, name)} cannot be the name of a view", hint
            )
        sql = reading.resolved_text(entry.value, inside("`views`", name))
        if full is None or tables is None or sql is None or not isinstance(entry.value, ScalarNode):
            continue
        same = result[full].name if full in result else tables.names.tables.get(full)
        if same is not None:
            hint = "rename one; names are not case-sensitive in Spark"
            reading.report(
                entry.key, f"View {shown(name)} has the same name as {shown(same)}", hint
            )
        origin = origin_of(entry.value, sql, reading.lines)
        result[full] = ViewSpec(name, sql.text, reading.at(entry.key), origin)
    return result

"""What an answer would be if some rows of its tables were not there; no table is touched.

Law: what is told is the difference of two answers at the same versions, copy for copy. A query that
more rows never give fewer answers is read through its sketches, which hold the whole lineage of
whatever is left; any other by its own conditions alone, since rows that go may bring rows in.
Out of scope: which rows derive one (`app.using.derived_row`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa

from impctl.app.maintaining.answer_changes import changes_between
from impctl.app.preparing.filters import filters_of
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.using.answer_condition import condition_on
from impctl.app.using.engine_answer import LeftOut, engine_rows
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.using.worth import what_is_read
from impctl.app.workbench.memory_limit import MemoryLimit, held_to, memory_of
from impctl.app.workbench.workbench import Workbench
from impctl.compile.flows import BlockedError
from impctl.data.schema import Column
from impctl.errors import QueryError, UsageError
from impctl.expr.nodes import Or, columns_of
from impctl.plan.nodes import (
    Attribute,
    Distinct,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetKind,
    SetOperation,
    Sort,
    nodes_of,
)
from impctl.types import ColumnName, TableName
from impctl.values import dataclass
from impctl.workload.models import SketchUse
from impctl.workload.yaml import suggestion

_OF_TABLE = re.compile(r"\s*(?P<table>[\w.`-]+?)\s*:(?!:)\s*(?P<condition>.*)", re.DOTALL)
_OPTION = "--without"


@dataclass(frozen=True, slots=True)
class Without:
    """The changes from the answer to that without the rows, and how many went of those read, or of
    those in the state."""

    changes: pa.Table
    conditions: Mapping[TableName, tuple[str, ...]]
    removed: Mapping[TableName, int]
    files: int
    files_total: int
    from_state: bool = False


def answer_without(desk: Workbench, result: Fresh, texts: Sequence[str]) -> Without:
    """What would come and go of the answer without rows for which one of these is true.

    Each is a condition on columns of the query's only table, or `TABLE: CONDITION`. UsageError for
    one that cannot be read, QueryError where the engine lacks a part of the plan; errors of values
    as of `engine_answer`.
    """
    prepared = result.prepared
    conditions = conditions_by_table(prepared, texts)
    left_out = {table: rows_left_out(desk, table, some) for table, some in conditions.items()}
    use = SketchUse.ALWAYS if is_monotone(prepared.root) else SketchUse.NEVER
    if use is SketchUse.ALWAYS:
        pruned, sketches = what_is_read(desk.tables, result, use).pruned, result.sketches
    else:
        pruned, sketches = filters_of(desk.tables, prepared, (), result.versions), ()
    try:
        limit = MemoryLimit(memory_of(desk.settings, desk.workload))
        with held_to(limit):
            asked = (desk, limit, prepared, result.versions, pruned, sketches)
            before, after = engine_rows(*asked), engine_rows(*asked, left_out)
            changes = changes_between(before, after, desk.session_zone)
    except BlockedError as blocked:
        raise _cannot(prepared, blocked) from None
    removed = {table: one.rows for table, one in left_out.items()}
    return Without(changes, conditions, removed, pruned.files_kept, pruned.files_total)


def is_monotone(root: Plan) -> bool:
    """Whether rows that are there never keep a row of the answer away, nor change one."""
    return all(_is_monotone(node) for node in nodes_of(root))


def _is_monotone(node: Plan) -> bool:
    match node:
        case Scan() | Select() | Project() | Sort() | Distinct() | Fixpoint() | Recursive():
            return True
        case Join(kind=kind):
            return kind in (JoinKind.INNER, JoinKind.SEMI)
        case SetOperation(kind=kind):
            return kind is SetKind.UNION
    return False


def conditions_by_table(
    prepared: PreparedQuery, texts: Sequence[str]
) -> dict[TableName, tuple[str, ...]]:
    """The conditions of each table."""
    names = {table.lower(): table for table in prepared.tables}
    result: dict[TableName, tuple[str, ...]] = {}
    for text in texts:
        match = _OF_TABLE.fullmatch(text)
        if match is not None:
            written = match["table"].replace("`", "")
            table = names.get(written.lower())
            if table is None:
                raise UsageError(
                    f"Query `{prepared.spec.name}` reads no table `{written}`",
                    hint=suggestion(written, prepared.tables, "it reads"),
                    code="without_table",
                )
            text = match["condition"]
        elif len(names) == 1:
            (table,) = names.values()
        else:
            listed = ", ".join(f"`{name}`" for name in prepared.tables)
            raise UsageError(
                f"`{_OPTION}` does not name the table of its rows: {text}",
                hint=f'write `{_OPTION} "TABLE: CONDITION"`; the query reads {listed}',
                code="without_table",
            )
        result[table] = (*result.get(table, ()), text)
    return result


def rows_left_out(desk: Workbench, table: TableName, texts: Sequence[str]) -> LeftOut:
    """The rows of a table for which one of these conditions is true."""
    columns: Sequence[Column] = desk.tables.snapshot(table).schema.columns
    attributes = [Attribute(one.name, one.name, one.type) for one in columns]
    zone = desk.session_zone
    parts = tuple(condition_on(attributes, text, zone, _OPTION, "the table") for text in texts)
    condition = parts[0] if len(parts) == 1 else Or(parts)
    read: dict[ColumnName, Column] = {one.name: one for one in columns}
    return LeftOut(condition, tuple(read[name] for name in sorted(columns_of(condition))))


def _cannot(prepared: PreparedQuery, blocked: BlockedError) -> QueryError:
    return QueryError(
        f"The engine cannot run query `{prepared.spec.name}`, which `{_OPTION}` requires: "
        f"{blocked.message}",
        hint="run the query on Spark over `SELECT * FROM table WHERE NOT (condition)`",
        code="engine_cannot",
        location=prepared.place(blocked.span),
    )

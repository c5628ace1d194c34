"""The files that the conditions of a query leave of each access, by statistics.

Law: a file is left out only where statistics prove that no row of it comes through the conditions
right above the access (`own_files`), or that the plan gives the same without it: by conditions on
columns that the access joins on and by what is left of the other side (`wanted_files`). A circuit
keeps rows that have no partner yet, so it is filled from the former.
Out of scope: ranges of sketches (`app.preparing.filters`), telling files apart
(`tables.prune`, `app.preparing.joined_files`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from impctl.app.preparing.joined_files import Uris, narrow
from impctl.compile.compile import Compiled
from impctl.compile.flows import Source
from impctl.expr.nodes import And, Expr, columns_of, substitute
from impctl.plan.nodes import Plan, Select, scans_of
from impctl.plan.properties import scan_conditions
from impctl.rules.joined_columns import Tied, tied_columns
from impctl.rules.pushdown import push_selections
from impctl.sketch.sketch import RangeFilter
from impctl.tables.prune import prune, prune_by_condition
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.types import AccessId, AttributeId, ColumnName, TableName


def wanted_files(
    root: Plan,
    snapshots: Mapping[AccessId, Snapshot],
    filters: Mapping[AccessId, RangeFilter] | None = None,
) -> Uris:
    """The files that each access may need, by its range filter if there is one, by the conditions
    right above it, by those right above others on columns that it joins on, and by partners."""
    ties = tied_columns(root)
    left = _left(root, snapshots, {} if filters is None else filters, ties)
    narrow(ties, snapshots, left)
    return left


def own_files(snapshot: Snapshot, source: Source) -> tuple[DataFile, ...]:
    """The files of a snapshot with rows that may come further than the conditions on a source."""
    if not source.conditions:
        return snapshot.files
    columns = {identity: name for identity, name, _ in source.scan.columns}
    return _prune(snapshot, source.conditions, columns)


def files_meeting(
    snapshot: Snapshot, source: Source, wanted: Sequence[Sequence[Expr]]
) -> tuple[DataFile, ...]:
    """The files with rows that may meet all of one of these lists of conditions on a source."""
    columns = {identity: name for identity, name, _ in source.scan.columns}
    kept = {file.uri for asked in wanted for file in _prune(snapshot, asked, columns)}
    return tuple(file for file in snapshot.files if file.uri in kept)


def files_under(rows: Plan, conditions: Sequence[Expr], snapshot: Snapshot) -> set[str]:
    """The files with rows of a plan over one table that may meet all of these conditions."""
    (scan,) = scans_of(rows)
    plan = push_selections(Select(rows, And(tuple(conditions)))) if conditions else rows
    return wanted_files(plan, {scan.access: snapshot})[scan.access]


def files_of_table(
    snapshot: Snapshot, compiled: Compiled, sources: Collection[int] | None = None
) -> tuple[DataFile, ...]:
    """The files of a table that some source of a circuit needs, to be filled; of `sources` alone
    where they are given, under what is known of the scalars that their rows are selected by."""
    kept: set[str] = set()
    for at, source in enumerate(compiled.sources):
        if source.table != snapshot.table or (sources is not None and at not in sources):
            continue
        files = {file.uri for file in own_files(snapshot, source)}
        for join in compiled.distant:
            known = join.operator.known_condition()
            if known is not None and join.sides[0].reads(source.access):
                files &= files_under(join.sides[0].rows, (known,), snapshot)
        kept |= files
    return tuple(file for file in snapshot.files if file.uri in kept)


def files_by_table(
    snapshots: Mapping[AccessId, Snapshot], left: Uris
) -> dict[TableName, tuple[DataFile, ...]]:
    """The files that some access needs, by table, in the snapshot's order."""
    kept: dict[TableName, set[str]] = {}
    for access, snapshot in snapshots.items():
        kept.setdefault(snapshot.table, set()).update(left[access])
    tables = {snapshot.table: snapshot for snapshot in snapshots.values()}
    return {
        table: tuple(file for file in snapshot.files if file.uri in kept[table])
        for table, snapshot in tables.items()
    }


def _left(
    root: Plan,
    snapshots: Mapping[AccessId, Snapshot],
    filters: Mapping[AccessId, RangeFilter],
    ties: Sequence[Tied],
) -> Uris:
    conditions, scans = scan_conditions(root), scans_of(root)
    implied: dict[AccessId, list[Expr]] = {scan.access: [] for scan in scans}
    for tied in ties:
        own = {tied.to.attribute.id}
        refs: dict[AttributeId, Expr] = {tied.to.attribute.id: tied.column.attribute.ref()}
        implied[tied.column.access] += (
            substitute(condition, refs)
            for condition in conditions.get(tied.to.access, ())
            if columns_of(condition) == own
        )
    left: Uris = {}
    for scan in scans:
        snapshot, result = snapshots[scan.access], filters.get(scan.access)
        chosen = snapshot.files if result is None else prune(snapshot, [result])
        kept = {file.uri for file in chosen}
        asked = (*conditions.get(scan.access, ()), *implied[scan.access])
        if asked:
            columns = {attribute.id: attribute.name for attribute in scan.attributes}
            kept &= {file.uri for file in _prune(snapshot, asked, columns)}
        left[scan.access] = kept
    return left


def _prune(
    snapshot: Snapshot, conditions: Sequence[Expr], columns: Mapping[AttributeId, ColumnName]
) -> tuple[DataFile, ...]:
    return prune_by_condition(snapshot, And(tuple(conditions)), columns)

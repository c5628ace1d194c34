"""Plans over lists of dicts by bag algebra, in plain Python: slow, short, obviously right.

Law: `evaluate` gives the bag of rows Spark gives (the order of the list means nothing). Where SQL
leaves a choice (ties in top-k and row_number), rows are taken in the order of their contents, or
as `shuffle` orders them. `annotate` also says which rows of which access each result row comes
from, and for every barrier which rows it needs: of a top-k those its first rows come from, ties
included, of a fixpoint those that its rows are derived from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from impctl.expr.nodes import And, ColumnRef, Compare, CompareOp, Expr, Literal
from impctl.plan.nodes import (
    Aggregate,
    Attribute,
    Distinct,
    Fixpoint,
    Join,
    JoinKind,
    OneRow,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetKind,
    SetOperation,
    Sort,
    SortKey,
    TopK,
    Window,
    WindowCall,
    Witness,
    attributes_of,
    inputs_of,
    nodes_of,
)
from impctl.types import AccessId, AttributeId, ColumnName, FixpointId, TableName
from tests.support.reference_aggregate import aggregate_value
from tests.support.reference_expr import (
    Value,
    identity,
    is_true,
    sort_key,
    value_of,
)
from tests.support.reference_rows import (
    NOTHING,
    Lineage,
    Row,
    Tuple,
    by_levels,
    distinct,
    grouped,
    least,
    lineage_of,
    named,
    unnamed,
)
from tests.support.reference_window import sees_whole, window_values

Tables = Mapping[TableName, Sequence[Mapping[ColumnName, Value]]]
Instances = Mapping[AccessId, Collection[int]]
"""Row numbers an access may see; an access not named sees the whole table."""


@dataclass(frozen=True)
class Annotated:
    """Result rows with lineage, and that of each barrier's rows (by position in `nodes_of`)."""

    rows: tuple[tuple[tuple[Value, ...], Lineage], ...]
    first_rows: Mapping[int, Lineage]

    @property
    def lineage(self) -> Lineage:
        """Everything the result rows come from."""
        return NOTHING.union(*(lineage for _, lineage in self.rows))


def evaluate(
    root: Plan,
    tables: Tables,
    instances: Instances | None = None,
    shuffle: Callable[[list[Tuple]], None] | None = None,
) -> list[tuple[Value, ...]]:
    """The rows of the plan, as tuples in the order of `attributes_of(root)`."""
    return [row for row, _ in annotate(root, tables, instances, shuffle).rows]


def annotate(
    root: Plan,
    tables: Tables,
    instances: Instances | None = None,
    shuffle: Callable[[list[Tuple]], None] | None = None,
    *,
    whole_windows: bool = False,
) -> Annotated:
    """The rows of the plan with their lineage; with `whole_windows` as captures count it.

    These say that a row of a window stems from all rows of its partition, whatever the function.
    """
    run = _Run(tables, {} if instances is None else instances, shuffle, whole_windows)
    outputs = attributes_of(root)
    rows = run.rows_of(root, 0)
    return Annotated(
        tuple((tuple(row.values[a.id] for a in outputs), row.lineage) for row in rows),
        run.first_rows,
    )


def bag(rows: Iterable[Sequence[Value]]) -> Counter[tuple[object, ...]]:
    """Rows with their multiplicities, so that two results can be compared."""
    return Counter(tuple(identity(value) for value in row) for row in rows)


def size_of(plan: Plan) -> int:
    return sum(1 for _ in nodes_of(plan))


@dataclass
class _Run:
    tables: Tables
    instances: Instances
    shuffle: Callable[[list[Tuple]], None] | None
    whole_windows: bool
    first_rows: dict[int, Lineage] = field(default_factory=dict)
    derived: dict[FixpointId, list[Row]] = field(default_factory=dict)

    def rows_of(self, node: Plan, position: int) -> list[Tuple]:
        match node:
            case Scan():
                return self._scan(node)
            case Select():
                rows = self.rows_of(node.child, position + 1)
                return [row for row in rows if is_true(node.predicate, row.values)]
            case Project():
                rows = self.rows_of(node.child, position + 1)
                return [
                    Tuple(
                        {o.attribute.id: value_of(o.expr, row.values) for o in node.outputs},
                        row.lineage,
                    )
                    for row in rows
                ]
            case Sort():
                return self.rows_of(node.child, position + 1)
            case Join():
                left, right = self._sides(node, position)
                return _join(node, left, right)
            case SetOperation():
                left, right = self._sides(node, position)
                return _combine(
                    node, _renamed(node, node.left, left), _renamed(node, node.right, right)
                )
            case Distinct():
                return distinct(self.rows_of(node.child, position + 1))
            case Aggregate():
                return _aggregate(node, self.rows_of(node.child, position + 1))
            case TopK():
                return self._top(node, position)
            case Window():
                rows = self.rows_of(node.child, position + 1)
                return self._window(node, rows, is_whole=self.whole_windows)
            case OneRow():
                return [Tuple({}, frozenset())]
            case Recursive():
                return named(node.attributes, self.derived[node.fixpoint])
            case Fixpoint():
                return self._fixpoint(node, position)
            case Witness():
                return self._witnesses(node, self.rows_of(node.child, position + 1))

    def _sides(self, node: Plan, position: int) -> tuple[list[Tuple], list[Tuple]]:
        left, right = inputs_of(node)
        rows = self.rows_of(left, position + 1)
        return rows, self.rows_of(right, position + 1 + size_of(left))

    def _fixpoint(self, node: Fixpoint, position: int) -> list[Tuple]:
        """Every row counts for the barrier, whatever becomes of it above."""

        def base() -> list[Row]:
            return unnamed(attributes_of(node.base), self.rows_of(node.base, position + 1))

        def step(rows: list[Row]) -> list[Row]:
            self.derived[node.id], at = rows, position + 1 + size_of(node.base)
            return unnamed(attributes_of(node.step), self.rows_of(node.step, at))

        result = least(base, step, node.best) if node.is_set else by_levels(base, step, node.levels)
        self.first_rows[position] = lineage_of(rows := named(node.attributes, result))
        return rows

    def _scan(self, node: Scan) -> list[Tuple]:
        rows = self.tables[node.table]
        seen = self.instances.get(node.access, range(len(rows)))
        names = {name.lower(): name for name in rows[0]} if rows else {}
        result = []
        for index in sorted(seen):
            values = {a.id: rows[index][names[a.name.lower()]] for a in node.attributes}
            result.append(Tuple(values, frozenset({(node.access, index)})))
        return result

    def _ordered(self, rows: list[Tuple], order: Sequence[SortKey]) -> list[Tuple]:
        """Sorted by the keys; ties by contents, or as `shuffle` leaves them."""
        rows = list(rows)
        if self.shuffle is None:
            rows.sort(key=lambda row: repr([identity(v) for _, v in sorted(row.values.items())]))
        else:
            self.shuffle(rows)
        for key in reversed(order):
            valued = [(value_of(key.expr, row.values), row) for row in rows]
            nulls = [row for value, row in valued if value is None]
            sortable = [pair for pair in valued if pair[0] is not None]
            sortable.sort(key=lambda pair: sort_key(pair[0]), reverse=key.descending)
            known = [row for _, row in sortable]
            rows = [*nulls, *known] if key.nulls_first else [*known, *nulls]
        return rows

    def _top(self, node: TopK, position: int) -> list[Tuple]:
        rows = self.rows_of(node.child, position + 1)
        if node.rank is not None:
            return self._first_ranks(node, node.rank, rows, position)
        rows = self._ordered(rows, node.order)
        end = len(rows) if node.count is None else node.offset + node.count
        last = _standing(node.order, rows[end - 1]) if 0 < end <= len(rows) else None
        first = [row for i, row in enumerate(rows) if i < end or _standing(node.order, row) == last]
        kept = first if end > 0 else []
        self.first_rows[position] = NOTHING.union(*(row.lineage for row in kept))
        return rows[node.offset : end]

    def _witnesses(self, node: Witness, rows: list[Tuple]) -> list[Tuple]:
        parts: dict[object, list[Tuple]] = {}
        for row in rows:
            key = tuple(identity(value_of(e, row.values)) for e in node.partition_by)
            parts.setdefault(key, []).append(row)
        result = []
        for part in parts.values():
            for order in node.orders:
                best = _standing(order, self._ordered(part, order)[0])
                result.extend(row for row in part if _standing(order, row) == best)
        return result

    def _first_ranks(
        self, node: TopK, rank: WindowCall, rows: list[Tuple], position: int
    ) -> list[Tuple]:
        tied = replace(rank.attribute, id=f"{rank.attribute.id}/tied")
        function = "dense_rank" if rank.function == "dense_rank" else "rank"
        calls = (rank, replace(rank, attribute=tied, function=function))
        ranked = self._window(Window(node.child, calls), rows, is_whole=False)
        first = [row for row in ranked if _is_within(row, tied, node)]
        self.first_rows[position] = lineage_of(first)
        names = [attribute.id for attribute in attributes_of(node)]
        kept = [row for row in ranked if _is_within(row, rank.attribute, node)]
        return [Tuple({name: row.values[name] for name in names}, row.lineage) for row in kept]

    def _window(self, node: Window, rows: list[Tuple], *, is_whole: bool) -> list[Tuple]:
        """`is_whole`: every value comes from its whole partition, and so does the row."""
        rows = [Tuple(row.values, row.lineage) for row in rows]  # one object per copy of a row
        results = [dict(row.values) for row in rows]
        lineages = [row.lineage for row in rows]
        for call in node.calls:
            parts: dict[object, list[int]] = {}
            for index, row in enumerate(rows):
                key = tuple(identity(value_of(e, row.values)) for e in call.partition_by)
                parts.setdefault(key, []).append(index)
            for part in parts.values():
                if is_whole or sees_whole(call):
                    both = lineage_of([rows[index] for index in part])
                    for index in part:
                        lineages[index] |= both
                place = {id(rows[index]): index for index in part}
                ordered = self._ordered([rows[index] for index in part], call.order)
                standings = [_standing(call.order, row) for row in ordered]
                values = window_values(call, [row.values for row in ordered], standings)
                for row, value in zip(ordered, values, strict=True):
                    results[place[id(row)]][call.attribute.id] = value
        return [Tuple(v, result) for v, result in zip(results, lineages, strict=True)]


def _is_within(row: Tuple, rank: Attribute, node: TopK) -> bool:
    assert node.count is not None
    return int(row.values[rank.id]) <= node.count  # type: ignore[arg-type]  # a rank


def _standing(order: Sequence[SortKey], row: Tuple) -> tuple[object, ...]:
    return tuple(identity(value_of(key.expr, row.values)) for key in order)


def _join(node: Join, left: list[Tuple], right: list[Tuple]) -> list[Tuple]:
    names = [a.id for a in attributes_of(node.left)], [a.id for a in attributes_of(node.right)]
    result: list[Tuple] = []
    matched: set[int] = set()
    candidates = _candidates(node.condition, right, frozenset(names[1]))
    for row in left:
        partners = []
        for index in candidates(row):
            other = right[index]
            values = {**row.values, **other.values}
            if is_true(node.condition, values):
                partners.append(Tuple(values, row.lineage | other.lineage))
                matched.add(index)
        result.extend(_of_left_row(node, row, right, partners, names[1]))
    if node.kind in (JoinKind.RIGHT, JoinKind.FULL):
        padding: dict[AttributeId, Value] = dict.fromkeys(names[0])
        result.extend(
            Tuple({**padding, **other.values}, other.lineage)
            for index, other in enumerate(right)
            if index not in matched
        )
    return result


def _candidates(
    condition: Expr | None, right: Sequence[Tuple], ids: frozenset[AttributeId]
) -> Callable[[Tuple], Sequence[int]]:
    """For a row of the left side the places on the right where the condition can hold.

    Rows that differ in a column that must be equal are not compared, unless comparing may fail.
    """
    parts = condition.operands if isinstance(condition, And) else (condition,)
    pairs = [pair for part in parts for pair in _equal_columns(part, ids)]
    if not pairs or not all(map(_cannot_fail, parts)):
        return lambda row: range(len(right))
    places: dict[object, list[int]] = {}
    for index, other in enumerate(right):
        key = tuple(identity(other.values[theirs]) for _, theirs in pairs)
        places.setdefault(key, []).append(index)
    return lambda row: places.get(tuple(identity(row.values[mine]) for mine, _ in pairs), ())


def _equal_columns(
    part: Expr | None, ids: frozenset[AttributeId]
) -> list[tuple[AttributeId, AttributeId]]:
    """The columns of the left and the right side that the condition says are equal."""
    match part:
        case Compare(
            op=CompareOp.EQUAL | CompareOp.NULL_SAFE_EQUAL,
            left=ColumnRef() as one,
            right=ColumnRef() as other,
        ) if one.type == other.type and (one.id in ids) != (other.id in ids):
            return [(other.id, one.id) if one.id in ids else (one.id, other.id)]
    return []


def _cannot_fail(part: Expr | None) -> bool:
    return isinstance(part, Compare) and all(
        isinstance(side, ColumnRef | Literal) for side in (part.left, part.right)
    )


def _of_left_row(
    node: Join, row: Tuple, right: list[Tuple], partners: list[Tuple], padding: list[AttributeId]
) -> list[Tuple]:
    match node.kind:
        case JoinKind.INNER | JoinKind.RIGHT:
            return partners
        case JoinKind.LEFT | JoinKind.FULL:
            return partners or [Tuple({**row.values, **dict.fromkeys(padding)}, row.lineage)]
        case JoinKind.SEMI:
            lineage = NOTHING.union(*(partner.lineage for partner in partners))
            return [Tuple(row.values, row.lineage | lineage)] if partners else []
        case JoinKind.ANTI:
            hit = bool(partners)
            if node.null_aware and node.condition is not None:
                hit = any(
                    value_of(node.condition, {**row.values, **other.values}) is not False
                    for other in right
                )
            return [] if hit else [row]


def _renamed(node: SetOperation, side: Plan, rows: list[Tuple]) -> list[Tuple]:
    pairs = list(zip(node.attributes, attributes_of(side), strict=True))
    result = []
    for row in rows:
        values: dict[AttributeId, Value] = {}
        for output, source in pairs:
            value = row.values[source.id]
            if value is not None and output.type is not None and output.type.is_fractional:
                value = float(value)  # type: ignore[arg-type]  # a number by its column's type
            values[output.id] = value
        result.append(Tuple(values, row.lineage))
    return result


def _combine(node: SetOperation, left: list[Tuple], right: list[Tuple]) -> list[Tuple]:
    if node.kind is SetKind.UNION:
        return [*left, *right] if node.all else distinct([*left, *right])
    others = grouped(right)
    result: list[Tuple] = []
    for key, same in grouped(left).items():
        there = others.get(key, [])
        if node.kind is SetKind.EXCEPT:
            copies = len(same) - len(there) if node.all else int(not there)
            lineage = lineage_of(same)
        else:
            copies = min(len(same), len(there))
            copies = copies if node.all else min(copies, 1)
            lineage = lineage_of([*same, *there])
        result.extend([Tuple(same[0].values, lineage)] * max(copies, 0))
    return result


def _aggregate(node: Aggregate, rows: list[Tuple]) -> list[Tuple]:
    if node.grouping_sets is None:
        chosen = range(len(node.keys))
        return _groups(node, rows, set(chosen), exists_empty=not node.keys)
    return [
        row
        for indexes in node.grouping_sets
        for row in _groups(node, rows, set(indexes), exists_empty=False)
    ]


def _groups(
    node: Aggregate, rows: list[Tuple], used: set[int], *, exists_empty: bool
) -> list[Tuple]:
    groups: dict[tuple[object, ...], list[Tuple]] = {(): []} if exists_empty else {}
    keys: dict[tuple[object, ...], list[Value]] = {(): []}
    for row in rows:
        values = [
            value_of(output.expr, row.values) if index in used else None
            for index, output in enumerate(node.keys)
        ]
        key = tuple(identity(value) for value in values)
        groups.setdefault(key, []).append(row)
        keys.setdefault(key, values)
    result = []
    for key, members in groups.items():
        made = {
            output.attribute.id: value for output, value in zip(node.keys, keys[key], strict=True)
        }
        for output in node.aggregates:
            made[output.attribute.id] = aggregate_value(
                output.call, [row.values for row in members]
            )
        result.append(Tuple(made, lineage_of(members)))
    return result

"""Derivations in the state of a fixpoint that is kept by absorption."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.compile.answers import arrow_column, arrow_type
from impctl.compile.fixpoint import Keyed, columns_of_leaf, rows_of, untagged
from impctl.compile.flows import BlockedError, Flow, typed
from impctl.data.keys import group_normal
from impctl.data.schema import LONG
from impctl.data.vector import INT64_MAX, Bools, Ints, Vector, all_null
from impctl.engine.batch import Batch
from impctl.engine.circuit import Circuit
from impctl.engine.extremes import ranks_of
from impctl.engine.fixpoint.absorption import (
    AbsorbedFixpoint,
    Absorbs,
    Absorption,
    Grounded,
    Ingredient,
)
from impctl.engine.fixpoint.rows import NUMBER as KEPT_NUMBER
from impctl.errors import ImpctlError
from impctl.expr.nodes import Cast, ColumnRef, Expr, Literal
from impctl.plan import nodes as p
from impctl.plan.recursion import reads_fixpoint

if TYPE_CHECKING:
    from impctl.compile.builder import CircuitBuilder
    from impctl.types import AttributeId, ColumnName, FixpointId, TableName

# Plans whose rows carry the numbers of the rows they are made of, in extra columns: each row as
# often as there are ways to make it; NULL where a branch of a UNION has fewer numbers, and a number
# below zero for the branch, so that no two rows have the same. Nodes that merge rows (DISTINCT,
# UNION, a grouping, a fixpoint) are evaluated first and read like a table; so are EXISTS and IN
# below a node that counts rows, where partners must not multiply them. Rows that depend on the
# absence or order of others have no such plan: BlockedError with its place.

NUMBER = "_impctl_number"  # The column with the numbers of a table's rows


class NumberedPlan(Struct, frozen=True):
    """A plan and those of its columns that are row numbers."""

    plan: p.Plan
    numbers: tuple[p.Attribute, ...]


class RowNumbering(Struct, frozen=True):
    """Rewrites plans; `evaluated` gives what to read in place of a node that gives rows once."""

    evaluated: Callable[[p.Plan], p.Scan]

    def of(self, plan: p.Plan, *, is_counted: bool = False) -> NumberedPlan:
        """The plan with numbers, for consumers that count its rows or test which exist;
        BlockedError if a part has none."""
        match plan:
            case p.Scan() | p.Recursive():
                number = number_of(plan)
                scan = replace(plan, attributes=(*plan.attributes, number))
                return NumberedPlan(scan, (number,))
            case p.OneRow():
                # It is there whatever the tables hold: nothing is needed for it.
                return NumberedPlan(plan, ())
            case p.Select() | p.Sort():
                below = self.of(plan.child, is_counted=is_counted)
                return NumberedPlan(replace(plan, child=below.plan), below.numbers)
            case p.Project():
                below = self.of(plan.child, is_counted=is_counted)
                outputs = (*plan.outputs, *p.ComputedColumn.unchanged(below.numbers))
                return NumberedPlan(replace(plan, child=below.plan, outputs=outputs), below.numbers)
            case p.Join(kind=p.JoinKind.SEMI) if is_counted:
                return self.of(self.evaluated(plan))
            case p.Join(kind=p.JoinKind.INNER | p.JoinKind.SEMI):
                return self._joined(plan, is_counted)
            case p.SetOperation(kind=p.SetKind.UNION, all=True):
                return self._either(plan, is_counted)
            case p.Distinct() | p.Aggregate() | p.Fixpoint():
                return self.of(self.evaluated(plan))
            case p.SetOperation(kind=p.SetKind.UNION):
                return self.of(self.evaluated(p.Distinct(replace(plan, all=True), span=plan.span)))
        raise BlockedError(_reason(plan), plan.span)

    def _joined(self, plan: p.Join, is_counted: bool) -> NumberedPlan:
        left, right = (self.of(side, is_counted=is_counted) for side in (plan.left, plan.right))
        numbers = (*left.numbers, *right.numbers)
        joined = p.Join(p.JoinKind.INNER, left.plan, right.plan, plan.condition, span=plan.span)
        if plan.kind is p.JoinKind.INNER:
            return NumberedPlan(joined, numbers)
        # Every partner is a separate way in which EXISTS or IN is true.
        columns = p.ComputedColumn.unchanged(plan.left.attributes)
        return NumberedPlan(
            p.Project(joined, (*columns, *p.ComputedColumn.unchanged(numbers)), span=plan.span),
            numbers,
        )

    def _either(self, plan: p.SetOperation, is_counted: bool) -> NumberedPlan:
        sides = [self.of(side, is_counted=is_counted) for side in (plan.left, plan.right)]
        most = max(len(side.numbers) for side in sides) + 1
        name = f"{plan.attributes[0].id if plan.attributes else id(plan)}/{NUMBER}"
        numbers = tuple(_number(f"{name}{index}") for index in range(most))
        wide: list[p.Plan] = []
        for position, (side, child) in enumerate(zip(sides, (plan.left, plan.right), strict=True)):
            result: list[Expr] = [Literal(-1 - position, LONG)]
            result += [number.ref() for number in side.numbers]
            result += [Literal(None, LONG)] * (most - len(result))
            columns = p.ComputedColumn.unchanged(child.attributes)
            number_columns = tuple(
                p.ComputedColumn(_number(f"{name}{index}/{position}"), expr)
                for index, expr in enumerate(result)
            )
            wide.append(p.Project(side.plan, (*columns, *number_columns), span=plan.span))
        left, right = wide
        attributes = (*plan.attributes, *numbers)
        return NumberedPlan(replace(plan, left=left, right=right, attributes=attributes), numbers)


def numbered(rows: pa.Table, start: int) -> pa.Table:
    """Rows of a table with numbers from `start` on."""
    numbers = np.arange(start, start + len(rows), dtype=np.int64)
    return rows.append_column(NUMBER, pa.array(numbers))


def number_of(leaf: p.Scan | p.Recursive) -> p.Attribute:
    """The column of a leaf with the numbers of its rows."""
    name = leaf.access if isinstance(leaf, p.Scan) else leaf.attributes[0].id
    return p.Attribute(f"{name}/{NUMBER}", NUMBER, LONG, nullable=False)


def _number(name: str) -> p.Attribute:
    return p.Attribute(name, NUMBER, LONG)


def _reason(plan: p.Plan) -> str:
    """Why rows of a node are not made only of rows below it."""
    match plan:
        case p.Join(kind=p.JoinKind.ANTI):
            return "NOT EXISTS, NOT IN or an anti join returns rows because other rows do not exist"
        case p.Join(kind=kind):
            return f"a {kind} join returns rows because other rows do not exist"
        case p.SetOperation(kind=kind):
            return f"{kind.upper()} returns rows because other rows exist or do not exist"
        case p.TopK():
            return "the rows that a LIMIT or a rank returns depend on all other rows"
        case p.Window():
            return "a window function's value depends on all rows of its window"
    return f"{type(plan).__name__} cannot be traced to rows"


# A making is one way to make a row, its head, from others, its bodies: the head exists if all
# bodies do. Makings of groups are marked: part of a group's rows may make the same row by chance,
# or another one.


class Makings(Struct, frozen=True):
    """Making i makes `heads[i]` of `bodies[starts[i] : starts[i + 1]]`; shape (makings,) for
    `heads` and `are_groups`, one more for `starts`."""

    heads: Ints
    starts: Ints
    bodies: Ints
    are_groups: Bools

    def __len__(self) -> int:
        return len(self.heads)


class MakingList:
    def __init__(self) -> None:
        self._heads: list[Ints] = []
        self._sizes: list[Ints] = []
        self._bodies: list[Ints] = []
        self._are_groups: list[Bools] = []

    def add(self, heads: Ints, bodies: Ints) -> None:
        """Add one making per row; `bodies` has shape (rows, longest body), -1 for none."""
        present = bodies >= 0
        self._put(heads, present.sum(axis=1, dtype=np.int64), bodies[present], is_group=False)

    def add_groups(self, groups: Ints, heads: Ints, bodies: Ints) -> None:
        """Add one making per group, of the bodies of all rows with its head."""
        owners = np.repeat(heads, bodies.shape[1])
        flat = bodies.reshape(-1)
        present = flat >= 0
        pairs = np.unique(np.stack([owners[present], flat[present]], axis=1), axis=0)
        groups = np.sort(groups)
        ends = np.searchsorted(pairs[:, 0], groups, side="right")
        sizes = ends - np.searchsorted(pairs[:, 0], groups, side="left")
        self._put(groups, sizes, pairs[:, 1], is_group=True)

    def _put(self, heads: Ints, sizes: Ints, bodies: Ints, *, is_group: bool) -> None:
        self._heads.append(heads)
        self._sizes.append(sizes)
        self._bodies.append(bodies)
        self._are_groups.append(np.full(len(heads), is_group))

    def whole(self) -> Makings:
        """All makings in insertion order."""
        nothing = np.zeros(0, dtype=np.int64)
        sizes = np.concatenate([np.zeros(1, dtype=np.int64), *self._sizes])
        return Makings(
            np.concatenate([nothing, *self._heads]),
            np.cumsum(sizes),
            np.concatenate([nothing, *self._bodies]),
            np.concatenate([np.zeros(0, dtype=np.bool_), *self._are_groups]),
        )


class BestSoFar:
    """The best values of each group of a fixpoint's rows seen so far, as defined in `plan.nodes`. A
    beaten row stays beaten, so the rows left at the end are the best. Values without an order in
    whole numbers beat nothing."""

    def __init__(self, best: p.BestOnly) -> None:
        self._only = best
        self._best: dict[tuple[Any, ...], list[int]] = {}

    def meet(self, columns: Sequence[Vector], length: int) -> Bools:
        """Mark the rows that no row seen so far beats, nor one of these; shape (length,)."""
        ranked = [columns[value.place] for value in self._only.values]
        if any(column.is_textual or column.values.dtype == object for column in ranked):
            return np.ones(length, dtype=np.bool_)
        groups, values = self._groups(columns, length), self._values(columns)
        stays = np.zeros(length, dtype=np.bool_)
        for index, group in enumerate(groups):
            best = self._best.setdefault(group, [INT64_MAX] * len(values))
            for position, (ranks, _) in enumerate(values):
                best[position] = min(best[position], int(ranks[index]))
        for index, group in enumerate(groups):
            best = self._best[group]
            stays[index] = any(
                ranks[index] == best[position] or (self._only.keeps_null and not valid[index])
                for position, (ranks, valid) in enumerate(values)
            )
        return stays

    def _groups(self, columns: Sequence[Vector], length: int) -> list[tuple[Any, ...]]:
        keys, _ = group_normal([columns[position] for position in self._only.keys], length)
        return list(row_keys(keys)) if keys else [()] * length

    def _values(self, columns: Sequence[Vector]) -> list[tuple[Ints, Bools]]:
        """The order of each value, the last one for NULL, and whether it is not NULL."""
        result = []
        for value in self._only.values:
            column = columns[value.place]
            valid = column.validity()
            ranks = ranks_of(column, reverse=value.greatest)
            result.append((np.where(valid, ranks, INT64_MAX), valid))
        return result


# A fixpoint's derivation taken apart into ingredients and what joins them. The plan with leaves in
# place of the ingredients derives the rows of base and step, as often as they are derived. An
# ingredient is conditions and columns over one table, as deep as joins and UNION ALL allow, with
# all columns that the fixpoint reads of the table anywhere, so that its rows can be identified
# across ingredients. Any other part that does not read the fixpoint, such as a grouping, is an
# ingredient whose rows are no rows of a table.


class OfTable(Struct, frozen=True):
    """Which table the rows of an ingredient are from, and the columns that identify them."""

    table: TableName
    columns: tuple[ColumnName, ...]


class IngredientOfPlan(Struct, frozen=True):
    """An ingredient, the leaf in its place, and the columns that identify its rows. `of` is None if
    they are no rows of a table; without `has_scans` they never change."""

    plan: p.Plan
    leaf: p.Recursive
    told_by: tuple[p.Attribute, ...]
    of: OfTable | None
    has_scans: bool


def taken_apart(node: p.Fixpoint) -> tuple[p.Plan, Sequence[IngredientOfPlan]]:
    """A fixpoint's base and step as one plan, under its columns and over its own rows and those of
    ingredients; and these."""
    read: dict[TableName, dict[ColumnName, p.Attribute]] = {}
    for scan in node.scans:
        read.setdefault(scan.table, {}).update(
            {attribute.name: attribute for attribute in scan.attributes}
        )
    taking = _Taking(node, read)
    base = taking.opened(under_columns_of(node.base, node))
    step = under_columns_of(taking.opened(node.step), node)
    both = p.SetOperation(p.SetKind.UNION, True, base, step, node.attributes, span=node.span)
    return both, taking.ingredients


class _Taking(Struct, frozen=True):
    node: p.Fixpoint
    read: Mapping[TableName, Mapping[ColumnName, p.Attribute]]
    """The columns that are read of each table."""
    ingredients: list[IngredientOfPlan] = field(default_factory=list)

    def opened(self, plan: p.Plan) -> p.Plan:
        """The plan with leaves in place of its ingredients."""
        if isinstance(plan, p.Recursive) and plan.fixpoint == self.node.id:
            return plan
        if not reads_fixpoint(plan, self.node.id) and not _is_joined(plan):
            return self._ingredient(plan)
        match plan:
            case p.Select() | p.Project() | p.Sort():
                return replace(plan, child=self.opened(plan.child))
            case p.Join() | p.SetOperation():
                left, right = self.opened(plan.left), self.opened(plan.right)
                return replace(plan, left=left, right=right)
        # Numbering rejects everything else.
        return plan

    def _ingredient(self, plan: p.Plan) -> p.Plan:
        scans = plan.scans
        columns = plan.attributes
        wide = self._with_columns_of_table(plan)
        if wide is not None:
            (scan,) = wide.scans
            of = OfTable(scan.table, tuple(attribute.name for attribute in scan.attributes))
            told_by = scan.attributes
        else:
            wide, of, told_by = plan, None, columns
        if not wide.attributes:
            reason = "the engine does not support a part of WITH RECURSIVE without columns"
            why = "its rows cannot be distinguished"
            raise BlockedError(f"{reason}, because {why}", plan.span)
        name = f"{self.node.id}/{len(self.ingredients)}"
        leaf = p.Recursive(name, wide.attributes, span=plan.span)
        self.ingredients.append(IngredientOfPlan(wide, leaf, told_by, of, bool(scans)))
        if len(leaf.attributes) == len(columns):
            return leaf
        return p.Project(leaf, p.ComputedColumn.unchanged(columns), span=plan.span)

    def _with_columns_of_table(self, plan: p.Plan) -> p.Plan | None:
        """Conditions and columns over a table, with all columns read of it; None for other
        plans."""
        match plan:
            case p.Scan():
                return self._whole(plan)
            case p.Select() | p.Sort():
                below = self._with_columns_of_table(plan.child)
                return None if below is None else replace(plan, child=below)
            case p.Project():
                below = self._with_columns_of_table(plan.child)
                if below is None:
                    return None
                known: set[AttributeId] = {output.attribute.id for output in plan.outputs}
                (scan,) = below.scans
                more = p.ComputedColumn.unchanged(o for o in scan.attributes if o.id not in known)
                return replace(plan, child=below, outputs=(*plan.outputs, *more))
        return None

    def _whole(self, scan: p.Scan) -> p.Scan | None:
        names = {attribute.name for attribute in scan.attributes}
        more = (
            replace(one, id=f"{scan.access}.{name}")
            for name, one in self.read[scan.table].items()
            if name not in names
        )
        result = replace(scan, attributes=(*scan.attributes, *more))
        return result if result.attributes else None


def _is_joined(plan: p.Plan) -> bool:
    """Whether its rows are made of several parts, each by itself an ingredient."""
    match plan:
        case p.Select() | p.Project() | p.Sort():
            return _is_joined(plan.child)
        case p.Join(kind=p.JoinKind.INNER) | p.SetOperation(kind=p.SetKind.UNION, all=True):
            return True
    return False


def under_columns_of(plan: p.Plan, node: p.Fixpoint) -> p.Plan:
    """The base or the step of a fixpoint under the columns, and types, of its rows."""
    outputs = []
    for new, old in zip(node.attributes, plan.attributes, strict=True):
        kind, ref = new.type, old.ref()
        expr = ref if kind is None or kind == old.type else Cast(ref, kind)
        outputs.append(p.ComputedColumn(new, expr))
    return p.Project(plan, tuple(outputs), span=plan.span)


# Fixpoints kept by absorption. T, its changes and the sketch are as for ranks (`compile.fixpoint`);
# rows of the fixpoint and of ingredients carry their numbers as columns. Refused with its place:
# whatever makes rows from absent rows (an outer join of its rows, NOT IN, NOT EXISTS), counts
# derivations, or keeps only the best rows.

_ABSORBED = "cannot be maintained with `provenance: absorption`"


class AbsorbedRows(Struct, frozen=True):
    """A fixpoint of a plan that is kept by absorption; `of` has the tables of its ingredients."""

    fixpoint: FixpointId
    operator: AbsorbedFixpoint
    of: tuple[OfTable | None, ...]


def build_absorbed(
    builder: CircuitBuilder,
    node: p.Fixpoint,
    inner: CircuitBuilder,
    key: Keyed | None,
    absorbs: Absorbs,
) -> tuple[Flow, AbsorbedRows]:
    """Build the operators of a fixpoint; `inner` builds those that derive its rows; KEYED if it has
    a `key`. BlockedError if it cannot be kept so."""
    _refuse(node)
    columns = typed(node.attributes, node.span)
    plan, apart = taken_apart(node)
    numbered = RowNumbering(_refused).of(plan)
    name = builder.name("fixpoint")
    inner.prefix = f"{name}."
    number = f"{name}/number"
    ingredients = _ingredients(builder, apart, key)
    leaf_flows = {node.id: Flow(-1, (*columns, (number, LONG)), ())}
    for index, (leaf, flow) in enumerate(zip((i.leaf for i in apart), ingredients, strict=True)):
        leaf_columns = (*typed(leaf.attributes, node.span), (number_of(leaf).id, LONG))
        leaf_flows[leaf.fixpoint] = Flow(-2 - index, leaf_columns, flow.accesses)
    inner.leaf_flows = leaf_flows
    flow = inner.sure(inner.build(numbered.plan, must_be_sure=True))
    bodies = tuple(number.id for number in numbered.numbers)
    every = (*columns, *((body, LONG) for body in bodies))
    outputs = [(column, ColumnRef(column, kind)) for column, kind in every]
    flow = inner.project(flow, outputs, every, node)
    operator = AbsorbedFixpoint(
        name,
        columns,
        number,
        Circuit(inner.operators, inner.inputs),
        [
            Ingredient(
                typed(ingredient.told_by, node.span),
                number_of(ingredient.leaf).id,
                ingredient.has_scans,
            )
            for ingredient in apart
        ],
        bodies,
        len(flow.accesses),
        absorbs=absorbs,
    )
    rows = rows_of(builder, operator, ingredients, columns, flow.accesses, key)
    return rows, AbsorbedRows(node.id, operator, tuple(ingredient.of for ingredient in apart))


def _ingredients(
    builder: CircuitBuilder, apart: Sequence[IngredientOfPlan], key: Keyed | None
) -> list[Flow]:
    flows = []
    for ingredient in apart:
        flow = builder.sure(builder.build(ingredient.plan, must_be_sure=True))
        columns_of_leaf(ingredient.leaf, flow, ingredient.plan.span)
        flows.append(untagged(builder, flow) if key is not None else flow)
    return flows


def _refuse(node: p.Fixpoint) -> None:
    """BlockedError if it is no set of all rows derived."""
    refused = {
        "with UNION ALL": not node.is_set,
        "that keeps only the best rows": node.best is not None,
        "whose sketch has only one derivation of each row": node.chooses,
    }
    for reason, is_refused in refused.items():
        if is_refused:
            raise BlockedError(f"WITH RECURSIVE {reason} {_ABSORBED}", node.span)


def _refused(node: p.Plan) -> p.Scan:
    reason = f"{type(node).__name__} over rows of the self-referencing WITH entry"
    raise BlockedError(f"{reason} {_ABSORBED}", node.span)


# What the state of a fixpoint kept by absorption gives: its rows, rows of tables, all derivations;
# no table is read. Distinct rows of tables, in the columns read, are numbered from 0 across
# accesses, rows of the fixpoint from `first` to below `end`.

_ZONE = "UTC"  # The time zone of reported times: that of times in tables


class TableRows(Struct, frozen=True):
    """Rows of one table: the number of each, how many copies there are, and its values."""

    columns: tuple[ColumnName, ...]
    numbers: Sequence[int]
    copies: Sequence[int]
    rows: pa.Table


class KnownRows(Struct, frozen=True):
    """Rows of a fixpoint with their numbers, shape (rows,), and all makings of them: heads, shape
    (makings,), and bodies, shape (makings, longest body), -1 for none; the rows of `tables` that
    they are made of."""

    fixpoint: FixpointId
    columns: Sequence[Vector]
    numbers: Ints
    heads: Ints
    bodies: Ints
    first: int
    end: int
    tables: Mapping[TableName, TableRows]


def known_rows(absorbed: AbsorbedRows) -> KnownRows | None:
    """The derivations in the fixpoint's state; None if some leaves are no rows of a table, or if
    rows of one table are read by different columns and cannot be identified."""
    read: dict[TableName, tuple[ColumnName, ...]] = {}
    for of, ingredient in zip(absorbed.of, absorbed.operator.ingredients, strict=True):
        if not ingredient.is_leaf:
            continue
        if of is None or set(read.setdefault(of.table, of.columns)) != set(of.columns):
            return None
    numbers, number_of_leaf = count(), dict[int, int]()
    tables = {
        table: _rows_of(absorbed, table, columns, numbers, number_of_leaf)
        for table, columns in read.items()
    }
    operator, first = absorbed.operator, sum(len(table.numbers) for table in tables.values())
    matrix, rows = operator.numbers(), operator.rows.whole()
    leaves = np.full(max(number_of_leaf, default=0) + 2, -1, dtype=np.int64)
    for leaf, number in number_of_leaf.items():
        leaves[leaf] = number
    heads, parts = matrix[:, 0] // 2 + first, matrix[:, 1:]
    is_leaf = (parts >= 0) & (parts % 2 == 1)
    of_leaves = leaves[np.where(is_leaf, parts, len(leaves) - 1)]
    bodies = np.where(parts >= 0, np.where(is_leaf, of_leaves, parts // 2 + first), -1)
    if len(rows):
        columns = [rows.columns[name] for name, _ in operator.columns]
        own_numbers = rows.columns[KEPT_NUMBER].values // 2 + first
    else:
        columns = [all_null(kind, 0) for _, kind in operator.columns]
        own_numbers = np.zeros(0, dtype=np.int64)
    end = first + int(max(heads.max(initial=0), own_numbers.max(initial=0))) + 1
    return KnownRows(absorbed.fixpoint, columns, own_numbers, heads, bodies, first, end, tables)


def _rows_of(
    absorbed: AbsorbedRows,
    table: TableName,
    columns: tuple[ColumnName, ...],
    numbers: Iterable[int],
    number_of_leaf: dict[int, int],
) -> TableRows:
    """The rows of a table over all its ingredients; notes which leaf is which row."""
    unused = iter(numbers)
    seen: dict[tuple[Any, ...], int] = {}
    copies: dict[int, int] = {}
    tables: list[pa.Table] = []
    for index, of in enumerate(absorbed.of):
        if of is None or of.table != table:
            continue
        values, leaves, weights = _stored_leaves(absorbed, index)
        columns_of_row = {column: values[column] for column in columns}
        new = []
        for position, row in enumerate(row_keys(columns_of_row.values())):
            number = seen.get(row)
            if number is None:
                number = seen[row] = next(unused)
                new.append(position)
            copies[number] = max(weights[position], copies.get(number, 0))
            number_of_leaf[leaves[position]] = number
        tables.append(_shown(columns_of_row).take(pa.array(new, pa.int64())))
    return TableRows(columns, [*seen.values()], [*copies.values()], pa.concat_tables(tables))


def leaves_of(absorbed: AbsorbedRows, index: int) -> tuple[pa.Table, list[int], list[int]]:
    """The leaves of an ingredient: values by the columns of its table, numbers, and copies."""
    values, numbers, copies = _stored_leaves(absorbed, index)
    return _shown(values), numbers, copies


def rows_without(absorbed: AbsorbedRows, leaves: Sequence[int]) -> tuple[Batch, Batch]:
    """All rows of the fixpoint, and those that remain without some leaves, by its functions."""
    operator = absorbed.operator
    deleted = operator.absorption.gone_without(leaves)
    rows = operator.rows.whole()
    if not len(rows):
        return rows, rows
    left = rows.keep(~np.isin(rows.columns[KEPT_NUMBER].values, [*deleted]))
    names = [name for name, _ in operator.columns]
    every, rest = (
        Batch({name: batch.columns[name] for name in names}, batch.weights, ())
        for batch in (rows, left)
    )
    return every, rest


def _stored_leaves(
    absorbed: AbsorbedRows, index: int
) -> tuple[dict[ColumnName, Vector], list[int], list[int]]:
    """As `leaves_of`, values as the state holds them."""
    of, ingredient = absorbed.of[index], absorbed.operator.ingredients[index]
    assert of is not None, "of a table"
    values = absorbed.operator.leaves[index].whole()
    # No rows may come without columns.
    vectors = [values.columns.get(name, all_null(kind, 0)) for name, kind in ingredient.columns]
    numbers = values.columns[KEPT_NUMBER].values.tolist() if len(values) else []
    return dict(zip(of.columns, vectors, strict=True)), numbers, values.weights.tolist()


def _shown(columns: Mapping[ColumnName, Vector]) -> pa.Table:
    """Values as the table has them: days are dates, decimals have their point."""
    arrays = {}
    for name, column in columns.items():
        once = np.ones(len(column), np.int64)
        arrays[name] = arrow_column(column, once, arrow_type(column.type, _ZONE))
    return pa.table(arrays)


def row_keys(columns: Iterable[Vector]) -> Iterable[tuple[Any, ...]]:
    """Return each row as a hashable key: equal rows have one, though NaN does not equal itself."""
    rows = zip(*(column.to_arrow().to_pylist() for column in columns), strict=True)
    return (tuple("NaN" if part != part else part for part in row) for row in rows)


def smallest_by_functions(
    target: int, makings: Iterable[tuple[int, tuple[int, ...]]], first: int, absorbs: Absorbs
) -> frozenset[int] | None:
    """A smallest set of table rows that derives a row by these makings, by its function. None if
    functions need too many nodes. Table rows have numbers below `first`."""
    absorption = Absorption(absorbs.ship, absorbs.nodes)
    grounded = []
    for head, bodies in makings:
        derived = tuple(body for body in bodies if body >= first)
        grounded.append(Grounded(head, derived, tuple(body for body in bodies if body < first)))
    try:
        absorption.step((), grounded)
        result, is_smallest = absorption.smallest(target)
    except ImpctlError:
        return None
    return result if is_smallest else None

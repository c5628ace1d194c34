"""All derivations of the rows of a query, found by running it once with numbered rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.answers import arrow_column, arrow_type
from impctl.compile.build import PlanBuilder
from impctl.compile.flows import BlockedError, Column, Source, typed
from impctl.compile.provenance.absorbed import (
    BestSoFar,
    KnownRows,
    MakingList,
    Makings,
    NumberedPlan,
    RowNumbering,
    number_of,
    row_keys,
    under_columns_of,
)
from impctl.data.keys import group_normal
from impctl.data.schema import LONG
from impctl.data.vector import Ints, Vector, all_null, concat
from impctl.engine.batch import Batch, consolidated, empty_batch, stacked_batches
from impctl.engine.circuit import Circuit
from impctl.engine.operator import LIMITS, Limits
from impctl.expr.error_bounds import exactly
from impctl.plan import nodes as p
from impctl.plan.recursion import reads_fixpoint

if TYPE_CHECKING:
    from impctl.types import AccessId


# Rows of one node of a plan, each once and numbered. Rows are equal as for DISTINCT: NULL equals
# NULL, NaN NaN, 0.0 -0.0. A row gets its number when it is first seen; numbers are never reused.


class Met(Struct, frozen=True):
    """The number of each row seen, shape (rows,), and the numbers and columns of the new ones."""

    numbers: Ints
    new: Ints
    columns: tuple[Vector, ...]


class ProgramRows:
    """All rows seen so far; `numbers` gives the next unused ones."""

    def __init__(self, columns: Sequence[Column], numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._known: dict[tuple[Any, ...], int] = {}
        self._columns = [[all_null(kind, 0)] for _, kind in columns]
        self._row_numbers: list[Ints] = [np.zeros(0, dtype=np.int64)]

    def __len__(self) -> int:
        return len(self._known)

    @property
    def columns(self) -> tuple[Vector, ...]:
        """Their columns, in the order in which they were first seen."""
        return tuple(concat(parts) for parts in self._columns)

    @property
    def row_numbers(self) -> Ints:
        """Their numbers, shape (rows,)."""
        return np.concatenate(self._row_numbers)

    def meet(self, columns: Sequence[Vector], length: int) -> Met:
        """Number these rows. Cost: a look-up per distinct row."""
        keys, grouping = group_normal(list(columns), length)
        leaders = grouping.leaders(keys)
        rows = row_keys(leaders) if leaders else [()] * grouping.groups
        result, new = np.empty(grouping.groups, dtype=np.int64), []
        for index, key in enumerate(rows):
            number = self._known.get(key)
            if number is None:
                number = self._known[key] = next(self._numbers)
                new.append(index)
            result[index] = number
        indexes = np.array(new, dtype=np.int64)
        new_columns = tuple(column.take(grouping.first[indexes]) for column in keys)
        self._row_numbers.append(result[indexes])
        for parts, column in zip(self._columns, new_columns, strict=True):
            parts.append(column)
        return Met(result[grouping.index()], result[indexes], new_columns)


# All makings of the rows of a query, found by running it once with numbered rows. A making exists
# iff all its bodies are given table rows or rows made of them. Table rows have the given numbers,
# made rows those from `first` on. A group has one making, of all its rows. A fixpoint's rows come
# round by round, each stepped once; if only the best rows count, those already beaten are not
# stepped, and no beaten row is left. Cost: the makings, which may be many more than the rows.


class Made(Struct, frozen=True):
    """The rows of a query, each once: their numbers, shape (rows,), their columns, and all makings
    of them and of what they are made of."""

    numbers: Ints
    columns: Sequence[Vector]
    makings: Makings

    def to_arrow(self, attributes: Sequence[p.Attribute], zone: str) -> pa.Table:
        """The rows as an answer has them, under these attributes, in a session of this zone."""
        ones = np.ones(len(self.numbers), dtype=np.int64)
        pairs = zip(typed(attributes, None), self.columns, strict=True)
        columns = [
            arrow_column(column, ones, arrow_type(kind, zone)) for (_, kind), column in pairs
        ]
        return pa.Table.from_arrays(columns, names=[attribute.name for attribute in attributes])


def made_rows(
    root: p.Plan,
    tables: Mapping[AccessId, pa.Table],
    first: int,
    check: Callable[[], None] = lambda: None,
    known: KnownRows | None = None,
    limits: Limits = LIMITS,
) -> Made:
    """The rows of a plan from these rows per access, each table with its rows' numbers in the
    column `NUMBER`, all below `first`. Rows of a `known` fixpoint are not recomputed. `check` is
    called after each run and round, and may raise. BlockedError if a part of the plan is not
    traced; UnsupportedError beyond the limits of recursion; errors of values as of the engine."""
    program = _Program(tables, first, check, known, limits)
    rows = program.once(root)
    return Made(rows.row_numbers, rows.columns, program.makings.whole())


class _Program:
    def __init__(
        self,
        tables: Mapping[AccessId, pa.Table],
        first: int,
        check: Callable[[], None],
        known: KnownRows | None,
        limits: Limits,
    ) -> None:
        self._limits = limits
        self.makings = MakingList()
        self._tables = tables
        self._batches: dict[AccessId, Batch] = {}
        self._numbers = count(first if known is None else known.end)
        self._known = known
        self._check = check
        self._numbering = RowNumbering(self._evaluated)

    def once(self, plan: p.Plan) -> ProgramRows:
        rows = ProgramRows(typed(plan.attributes, plan.span), self._numbers)
        run = self._run(self._numbering.of(plan), plan.attributes)
        self._add_makings(rows, run, run.filled())
        return rows

    def _run(self, numbered_plan: NumberedPlan, attributes: Sequence[p.Attribute]) -> _PlanRun:
        return _PlanRun(numbered_plan, attributes, self._batch)

    def _add_makings(self, rows: ProgramRows, run: _PlanRun, batch: Batch) -> Met:
        """Output rows of a run as makings of its input rows."""
        self._check()
        met = rows.meet(run.columns(batch), len(batch))
        self.makings.add(met.numbers, run.bodies(batch))
        return met

    def _evaluated(self, node: p.Plan) -> p.Scan:
        match node:
            case p.Distinct():
                rows = self.once(node.child)
                return self._read_as(node, rows.columns, rows.row_numbers)
            case p.Aggregate():
                return self._grouped(node)
            case p.Fixpoint():
                return self._fixpoint(node)
            case p.Join():
                return self._with_partner(node)
        raise BlockedError(f"{type(node).__name__} cannot be traced to rows", node.span)

    def _read_as(self, node: p.Plan, columns: Sequence[Vector], numbers: Ints) -> p.Scan:
        """Made rows as those of a table in place of the node."""
        scan = self._standing_for(node)
        self._store(scan, columns, numbers)
        return scan

    def _standing_for(self, node: p.Plan) -> p.Scan:
        name = f"made/{len(self._batches)}"
        self._batches[name] = empty_batch(0)
        return p.Scan(name, name, node.attributes, span=node.span)

    def _store(self, scan: p.Scan, columns: Sequence[Vector], numbers: Ints) -> None:
        columns_by_id = {a.id: column for a, column in zip(scan.attributes, columns, strict=True)}
        columns_by_id[number_of(scan).id] = Vector(LONG, numbers)
        self._batches[scan.access] = Batch(columns_by_id, np.ones(len(numbers), dtype=np.int64), ())

    def _batch(self, source: Source) -> Batch:
        """The input of a source: rows of a table, or made rows."""
        rows = self._batches.get(source.access)
        return source.inserted(self._tables[source.access]) if rows is None else rows

    def _with_partner(self, node: p.Join) -> p.Scan:
        """The left rows of a semi join, with their multiplicity; every partner is a way."""
        left = self._numbering.of(node.left, is_counted=True)
        right = self._numbering.of(node.right)
        joined = p.Join(p.JoinKind.INNER, left.plan, right.plan, node.condition, span=node.span)
        left_columns = node.attributes
        run = self._run(NumberedPlan(joined, (*left.numbers, *right.numbers)), left_columns)
        result = run.filled()
        self._check()
        bodies = run.bodies(result)
        columns = tuple((number.id, LONG) for number in left.numbers)
        keys = [Vector(LONG, bodies[:, index]) for index in range(len(columns))]
        numbers = ProgramRows(columns, self._numbers).meet(keys, len(result)).numbers
        self.makings.add(numbers, bodies)
        distinct, first = np.unique(numbers, return_index=True)
        return self._read_as(node, [column.take(first) for column in run.columns(result)], distinct)

    def _grouped(self, node: p.Aggregate) -> p.Scan:
        if node.grouping_sets is not None:
            raise BlockedError("GROUPING SETS, CUBE or ROLLUP cannot be traced to rows", node.span)
        below = self._numbering.of(node.child, is_counted=True)
        keys = tuple(key.attribute for key in node.keys)
        passed = p.ComputedColumn.unchanged(below.numbers)
        keyed = p.Project(below.plan, (*node.keys, *passed), span=node.span)
        of_rows = self._run(NumberedPlan(keyed, below.numbers), keys)
        grouping = replace(node, child=below.plan)
        of_groups = self._run(NumberedPlan(grouping, ()), node.attributes)
        groups, rows = of_groups.filled(), of_rows.filled()
        self._check()
        numbered = ProgramRows(typed(keys, node.span), self._numbers)
        columns = of_groups.columns(groups)
        new_numbers = numbered.meet(columns[: len(keys)], len(groups)).numbers
        heads = numbered.meet(of_rows.columns(rows), len(rows)).numbers
        self.makings.add_groups(new_numbers, heads, of_rows.bodies(rows))
        return self._read_as(node, columns, new_numbers)

    def _fixpoint(self, node: p.Fixpoint) -> p.Scan:
        known = self._known
        if known is not None and known.fixpoint == node.id:
            self.makings.add(known.heads, known.bodies)
            return self._read_as(node, known.columns, known.numbers)
        if not node.is_set:
            raise BlockedError("WITH RECURSIVE of UNION ALL is not traced to rows", node.span)
        rows = ProgramRows(typed(node.attributes, node.span), self._numbers)
        base = self._run(self._numbering.of(under_columns_of(node.base, node)), node.attributes)
        result = [self._add_makings(rows, base, base.filled())]
        leaves: list[p.Scan] = []
        step = self._opened(node.step, node, leaves)
        run = self._run(self._numbering.of(under_columns_of(step, node)), node.attributes)
        # What a step makes without rows of the fixpoint comes with them.
        result.append(self._add_makings(rows, run, run.filled()))
        best = None if node.best is None else BestSoFar(node.best)
        rounds = 0
        while fronts := _fronts(best, result):
            rounds += 1
            self._limits.check(rounds, len(rows))
            result = []
            for columns, numbers in fronts:
                for leaf in leaves:
                    self._store(leaf, columns, numbers)
                result.append(
                    self._add_makings(rows, run, run.moved([leaf.access for leaf in leaves]))
                )
        return self._read_as(node, *_unbeaten(best, rows.columns, rows.row_numbers))

    def _opened(self, plan: p.Plan, node: p.Fixpoint, leaves: list[p.Scan]) -> p.Plan:
        """The step with a separate table in place of each leaf."""
        if isinstance(plan, p.Recursive) and plan.fixpoint == node.id:
            leaves.append(self._standing_for(plan))
            return leaves[-1]
        is_once = isinstance(plan, p.Aggregate | p.Distinct | p.Fixpoint) or (
            isinstance(plan, p.SetOperation) and not (plan.kind is p.SetKind.UNION and plan.all)
        )
        if is_once and reads_fixpoint(plan, node.id):
            reason = f"{type(plan).__name__} over rows of the self-referencing WITH entry"
            raise BlockedError(reason, plan.span)
        return plan.map_inputs(lambda child: self._opened(child, node, leaves))


_Rows = tuple[Sequence[Vector], Ints]  # Columns of rows, and their numbers


def _fronts(best: BestSoFar | None, result: Sequence[Met]) -> list[_Rows]:
    every = (_unbeaten(best, met.columns, met.new) for met in result)
    return [(columns, numbers) for columns, numbers in every if len(numbers)]


def _unbeaten(best: BestSoFar | None, columns: Sequence[Vector], numbers: Ints) -> _Rows:
    """All of these rows, or those that no row seen so far beats if only the best count."""
    if best is None:
        return columns, numbers
    (stay,) = best.meet(columns, len(numbers)).nonzero()
    return [column.take(stay) for column in columns], numbers[stay]


class _PlanRun:
    """A plan as a circuit, stepped with what it reads; `attributes` are the rows' own columns."""

    def __init__(
        self,
        numbered_plan: NumberedPlan,
        attributes: Sequence[p.Attribute],
        batch: Callable[[Source], Batch],
    ) -> None:
        self._columns = typed(attributes, numbered_plan.plan.span)
        self._numbers = tuple(number.id for number in numbered_plan.numbers)
        self._batch = batch
        builder = PlanBuilder({})
        passed = p.ComputedColumn.unchanged((*attributes, *numbered_plan.numbers))
        # Above a bare table there would be no operator.
        builder.build(
            p.Project(numbered_plan.plan, tuple(passed), span=numbered_plan.plan.span),
            must_be_sure=True,
        )
        self._sources = tuple(builder.sources)
        self._circuit = Circuit(builder.operators, builder.inputs)

    def filled(self) -> Batch:
        start = self._circuit.start()
        batches = map(self._batch, self._sources)
        result = self._circuit.step(*(batch if len(batch) else None for batch in batches))
        return self._rows(start, result)

    def moved(self, accesses: Collection[AccessId]) -> Batch:
        """Insert rows of these accesses; return the rows that exist after it."""
        return self._rows(
            self._circuit.step(
                *(
                    self._batch(source) if source.access in accesses else None
                    for source in self._sources
                )
            )
        )

    def _rows(self, *batch: Batch | None) -> Batch:
        parts = [part for part in batch if part is not None and len(part)]
        rows = stacked_batches(parts) if parts else empty_batch(0)
        # A group of no rows is emitted first, then deleted.
        return consolidated(rows) if bool((rows.weights < 0).any()) else rows

    def columns(self, batch: Batch) -> list[Vector]:
        if not len(batch):
            # No rows may come without columns.
            return [all_null(kind, 0) for _, kind in self._columns]
        return [exactly(batch.columns[name]) for name, _ in self._columns]

    def bodies(self, batch: Batch) -> Ints:
        """The numbers in the rows, shape (rows, numbers); -1 for none."""
        if not len(batch) or not self._numbers:
            return np.zeros((len(batch), len(self._numbers)), dtype=np.int64)
        columns = [batch.columns[name] for name in self._numbers]
        return np.stack(
            [np.where(column.validity(), column.values, -1) for column in columns], axis=1
        )

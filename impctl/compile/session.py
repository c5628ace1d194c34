"""One query's circuit at a version: step it with changes, write checkpoints, restore it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec import Struct

from impctl.compile.fill import Chain, RangeRows
from impctl.compile.flows import Readable, Source
from impctl.data.schema import Kind
from impctl.data.vector import Bools, Ints, Once, Vector, from_arrow
from impctl.engine.batch import Batch, loading, stacked_batches, unreadable
from impctl.engine.fixpoint.fixpoint import FixpointOperator
from impctl.engine.linear import Merge, SketchDelta
from impctl.engine.linear import TableScan as ScanOperator
from impctl.engine.lookups import DistantRows, RowReader
from impctl.engine.tags import RowTags
from impctl.engine.trace import RowIndex
from impctl.expr.evaluate import Condition, find_condition_blocker
from impctl.expr.nodes import Expr, columns_of, conjuncts
from impctl.plan.moved_conditions import MovedConditions
from impctl.plan.properties import indispensable
from impctl.rules.pushdown import ColumnTie, column_behind, tied_columns
from impctl.sketch.sketch import RangeSet, Renumbering
from impctl.types import AccessId, ColumnName, TableName

if TYPE_CHECKING:
    from impctl.compile.buffers import TableRows
    from impctl.compile.builder import Partials
    from impctl.compile.compile import Dataflow
    from impctl.data.pages import StoredTable
    from impctl.engine.circuit import Circuit
    from impctl.engine.operator import Keeper, Operator
    from impctl.plan.nodes import Scan
    from impctl.sketch.partition import RangePartition


# What a commit writes of the state: new runs, dropped runs, counters. Law: what `checkpoint_of`
# hands out is all that changed since the last one was saved.


class Checkpoint(Struct, frozen=True):
    """State to write: runs to put, as (arrangement, sequence, table), and to drop; counters."""

    put: tuple[tuple[str, int, pa.Table], ...]
    drop: tuple[tuple[str, int], ...]
    counters: Mapping[str, int]


def checkpoint_of(keepers: Iterable[Keeper], counters: Mapping[str, int]) -> Checkpoint:
    put, drop = [], []
    for keeper in keepers:
        change = keeper.changes()
        put += [(keeper.name, sequence, table) for sequence, table in change.put]
        drop += [(keeper.name, sequence) for sequence in change.drop]
    return Checkpoint(tuple(put), tuple(drop), counters)


# The rows that enter or leave a query because constants in its conditions moved. Law: to a
# circuit they are one more batch behind the selections above a scan. With O and N the old and new
# conditions, D a table's change and T the table after it, what is behind the selections changes
# by O(D) + N(T) - O(T), since it was O(T - D) and becomes N(T). All rows of a step are one batch,
# so that a buffer that is refilled from the table finds itself where the table is.

Moves = Mapping[AccessId, MovedConditions]
Moving = tuple[Source, MovedConditions]  # A source with the moving parts of the conditions above it
MovedRows = Callable[[Sequence[Moving]], Iterable[pa.Table]]
"""All rows of the one table that these sources read, after the change, for which what moved for any
of them changes the outcome; it may return more. Columns come in any order."""


def moved_batches(
    sources: Sequence[Source], moves: Moves, rows: MovedRows
) -> tuple[dict[AccessId, list[Batch]], int]:
    """The inserted and deleted rows, by access, and how many of their tables there were. A table is
    read once, and a row counts once, even if several sources see it move."""
    by_table: dict[TableName, list[Moving]] = {}
    for source in sources:
        if source.access in moves:
            by_table.setdefault(source.table, []).append((source, moves[source.access]))
    result: dict[AccessId, list[Batch]] = {access: [] for access in moves}
    count = 0
    for asked in by_table.values():
        for table in rows(asked):
            moves_for_any = np.zeros(len(table), dtype=np.bool_)
            for source, moved in asked:
                batch, at = differing_rows(source, moved, table)
                moves_for_any[at] = True
                result[source.access].append(batch)
            count += int(moves_for_any.sum())
    return result, count


def moved_batch(
    moved: MovedConditions, change: Batch | None, came_or_went: Sequence[Batch]
) -> Batch | None:
    """The change behind the selections of a source; None for no change."""
    parts = [] if change is None else [change.keep(passing(moved.before, change))]
    kept = [part for part in (*parts, *came_or_went) if len(part)]
    return stacked_batches(kept) if kept else None


def differing_rows(source: Source, moved: MovedConditions, table: pa.Table) -> tuple[Batch, Ints]:
    """The inserted (+1) and deleted (-1) rows of these, and their positions."""
    batch = source.came(table)
    sign = passing(moved.after, batch).astype(np.int64)
    sign -= passing(moved.before, batch).astype(np.int64)
    result = np.flatnonzero(sign)
    taken = batch.take(result)
    return Batch(taken.columns, sign[result], taken.tags), result


def passing(predicates: Sequence[Expr], batch: Batch) -> Bools:
    """Which rows of a batch pass selections, the lowest first; each sees what those below left.
    NotExactError if that is too close to call."""
    left = np.arange(len(batch), dtype=np.int64)
    for predicate in predicates:
        rows = batch if len(left) == len(batch) else batch.take(left)
        if len(rows):
            left = left[Condition(predicate).truth(rows.columns, len(rows)).sure_true()]
    mask = np.zeros(len(batch), dtype=np.bool_)
    mask[left] = True
    return mask


# The rows that pass or are otherwise because constants moved above what a circuit keeps. Law:
# with A all rows below an operator without state before a step, d the change of these in it, O
# and N the operator with the old and the new constants, what it puts out changes by N(A + d) -
# O(A) = N(d) + N(A) - O(A). The first part is the step of the new circuit; the rest is put out
# beside it (`turned`). A is told by the state of the grouping or join below, as it is before the
# step, through whatever stands between, with the old constants. Cost: the rows of A, and of what
# changed, on.


class MovedAbove(Struct, frozen=True):
    """The positions of operators whose constants moved, and the circuit with the old ones."""

    before: Circuit
    places: tuple[int, ...]


def moved_above(before: Dataflow, after: Dataflow, moves: Moves) -> MovedAbove | None:
    """The operators whose constants moved, except conditions that `moves` has. None if the state of
    the one circuit is not that of the other."""
    if not _are_alike(before, after):
        return None
    read = {
        after.circuit.place_of(operator)
        for at, source in enumerate(after.sources)
        if source.access in moves
        for operator in after.circuit.selections_above(at, len(moves[source.access].after))
    }
    pairs = enumerate(zip(before.circuit, after.circuit, strict=True))
    places = [at for at, (was, now) in pairs if at not in read and not now.says_like(was)]
    return MovedAbove(before.circuit, tuple(places))


def why_not_computable(circuit: Circuit, above: MovedAbove) -> str | None:
    """Why the rows below one of these operators cannot be computed from the state, if so."""
    operators = tuple(circuit)
    for place in above.places:
        wire = circuit.wires[place][0]
        while wire >= 0 and not circuit.can_output_at(wire):
            lower = [below for below in circuit.wires[wire] if not circuit.can_output_at(below)]
            if not operators[wire].is_linear:
                return "it is used above a LIMIT or a join whose rows are not all stored"
            wire = lower[0]
        if wire < 0:
            return "it is used with rows of a table, but not in a condition on single rows"
    return None


def rows_of_moved_constants(
    circuit: Circuit, before: Circuit, places: tuple[int, ...]
) -> Mapping[int, Batch]:
    """The output of these operators beside the next step's own; call it before the step."""
    was = tuple(before)
    result = {}
    for at, operator in enumerate(circuit):
        if at in places:
            (wire,) = circuit.wires[at]
            rows = circuit.output_at(wire, before)
            batch = operator.turned(rows, was[at]) if len(rows) else rows
            if len(batch):
                result[at] = batch
    return result


def _are_alike(before: Dataflow, after: Dataflow) -> bool:
    """Whether the circuits differ only in what operators without state compute. Plans that differ
    in constants alone get other operators only if these merge conditions or arguments, or change
    the join order."""
    sources = [
        [(source.access, source.scan.columns, source.scan.partitions) for source in one.sources]
        for one in (before, after)
    ]
    mine, theirs = tuple(before.circuit), tuple(after.circuit)
    return (
        sources[0] == sources[1]
        and before.circuit.wires == after.circuit.wires
        and len(mine) == len(theirs)
        and all(one.keeps_like(other) for one, other in zip(mine, theirs, strict=True))
    )


# One query's circuit at a version: step it with changes, checkpoint it, take it up again. Law:
# sketch and state move together; what `checkpoint` hands out is all that a later `restore` needs
# to go on as if never stopped. Nothing here touches a disk.


class TableChange(Struct, frozen=True):
    """Rows of one table with a weight each; has at least the columns its sources read. With
    `shared`, other queries step with the same rows."""

    rows: pa.Table
    weights: Ints
    shared: Once | None = None


class GroupedRows(Struct, frozen=True):
    """Rows of one table, grouped by a pass of partial aggregates; and how many are in each range.
    `range_rows` has shape (ranges,) and counts all rows, before any selection."""

    groups: pa.Table
    range_rows: Ints


class Turn(Struct, frozen=True):
    """The rows of a table for one turn of filling a circuit, and the source positions they are
    for."""

    table: TableName
    sources: frozenset[int]


def _came(rows: pa.Table) -> TableChange:
    return TableChange(rows, np.ones(len(rows), dtype=np.int64))


class MaintainedQuery:
    """A compiled query with its state: the circuit, and on top of it the merge."""

    def __init__(self, compiled: Dataflow) -> None:
        self.compiled = compiled
        self.merge = Merge(compiled.sizes)
        self.range_rows = RangeRows(
            part for source in compiled.sources for part in source.scan.partitions
        )
        # Source, tag and slot: accesses of one partition all see the same rows, so one counts.
        self._counted: dict[int, tuple[int, int]] = {}
        for at, source in enumerate(compiled.sources):
            for tag, partition in enumerate(source.scan.partitions):
                self._counted.setdefault(self.range_rows.slot(partition), (at, tag))

    @property
    def circuit(self) -> Circuit:
        return self.compiled.circuit

    def restore(
        self,
        runs: Mapping[str, Sequence[tuple[int, StoredTable]]],
        counters: Mapping[str, int],
        *,
        is_converted: bool = False,
    ) -> None:
        """Restore the state of a checkpoint; StateCorruptError if it is not this circuit's.
        `is_converted` state is that of a circuit that keeps other pieces too."""
        with loading():
            for keeper in (*self.circuit.arrangements(), *self.merge.arrangements()):
                keeper.load(runs.get(keeper.name, ()))
            self.circuit.take_up(counters)
            self.merge.restore()
        self.range_rows.load(runs)
        if not is_converted:
            known = {keeper.name for keeper in self.keepers()} | self.circuit.counters().keys()
            unknown = (runs.keys() | counters.keys()) - known
            if unknown:
                raise unreadable(f"`{min(unknown)}` is unknown")

    def keepers(self) -> Iterator[Keeper]:
        yield from self.circuit.arrangements()
        yield from self.merge.arrangements()
        yield from self.range_rows.arrangements()

    def step(
        self, changes: Mapping[TableName, TableChange], table_rows: TableRows | None = None
    ) -> Mapping[AccessId, SketchDelta]:
        """Maintain: table changes in, the change of each sketch out. All accesses of a table see
        its change; a table that is not named did not change. `table_rows` reads the tables after
        the change, for a bounded buffer that is used up."""
        if table_rows is not None:
            for refilled in self.compiled.refills:
                refilled.read_from(table_rows)
        return self._step(changes)

    def _step(
        self, changes: Mapping[TableName, TableChange], sources: Collection[int] | None = None
    ) -> Mapping[AccessId, SketchDelta]:
        batches = self._read(changes, sources)
        self._count_rows(batches)
        deltas = self.count(self.circuit.step(*batches))
        return dict(zip(self.compiled.accesses, deltas, strict=True))

    def move(
        self,
        changes: Mapping[TableName, TableChange],
        moves: Moves,
        moved_rows: MovedRows,
        table_rows: TableRows,
        above: MovedAbove | None = None,
    ) -> tuple[Mapping[AccessId, SketchDelta], int]:
        """Maintain as `step` does while conditions become those of this circuit's plan. The state
        is that of the conditions before, and of the constants before in operators that moved
        `above`. Also returns how many rows were inserted or deleted: of tables, each row once
        however often its table is read, and of what is kept."""
        for refilled in self.compiled.refills:
            refilled.read_from(table_rows)
        batches = self._read(changes)
        self._count_rows(batches)
        past: dict[Operator, Batch] = {}
        turned = (
            {}
            if above is None
            else rows_of_moved_constants(self.circuit, above.before, above.places)
        )
        came_or_went, count = moved_batches(self.compiled.sources, moves, moved_rows)
        count += sum(map(len, turned.values()))
        for at, source in enumerate(self.compiled.sources):
            moved = moves.get(source.access)
            if moved is None:
                continue
            *_, top = self.circuit.selections_above(at, len(moved.after))
            result = moved_batch(moved, batches[at], came_or_went[source.access])
            batches[at] = None
            if result is not None:
                past[top] = result
        deltas = self.count(self.circuit.step_past(batches, past, turned))
        return dict(zip(self.compiled.accesses, deltas, strict=True)), count

    def _read(
        self, changes: Mapping[TableName, TableChange], sources: Collection[int] | None = None
    ) -> list[Batch | None]:
        batches: list[Batch | None] = []
        for at, source in enumerate(self.compiled.sources):
            change = changes.get(source.table)
            if change is None or (sources is not None and at not in sources):
                batches.append(None)
            else:
                batches.append(source.scan.read(change.rows, change.weights, change.shared))
        return batches

    def count(self, output: Batch | None) -> tuple[SketchDelta, ...]:
        """Count a change of the circuit's output in the sketches, in the accesses' order."""
        return self.merge.nothing() if output is None else self.merge.step(output)

    def fill(self, pass_: Partials, groups: pa.Table, partition: RangePartition) -> None:
        """Fill a fresh circuit that has a chain with the rows of a pass."""
        self.count(self._chain.start())
        self.count(self._chain.absorb(pass_, groups, partition, 1))

    @property
    def _chain(self) -> Chain:
        assert self.compiled.chain is not None
        return self.compiled.chain

    def absorb(
        self, pass_: Partials, came: GroupedRows, went: GroupedRows, partition: RangePartition
    ) -> None:
        """Maintain by a change that was grouped elsewhere, for a circuit that has a chain. Inserted
        rows go first: deleted ones were there before, or came with them."""
        for sign, part in ((1, came), (-1, went)):
            self.count(self._chain.absorb(pass_, part.groups, partition, sign))
            ranges = np.arange(len(part.range_rows), dtype=np.int64)
            slot = self.range_rows.slot(partition)
            self.range_rows.count(slot, ranges, part.range_rows * sign)

    def _count_rows(self, batches: Sequence[Batch | None]) -> None:
        for slot, (at, tag) in self._counted.items():
            batch = batches[at]
            if batch is not None:
                # A scan's rows have one range each, so there is a pair per row.
                pairs = batch.tags[tag].expand(batch.weights, batch.weights)
                self.range_rows.count(slot, pairs.ranges, pairs.weights)

    def read_by(self, reader: RowReader) -> None:
        """From the next step on, read rows that the circuit does not keep with this reader."""
        for side in self.circuit.reads:
            side.reader = reader

    def load(
        self,
        batches: Iterable[tuple[TableName, pa.Table]],
        pairs: Callable[[Readable], Iterable[Batch]] | None = None,
    ) -> None:
        """Fill a fresh circuit with these rows, those of whole tables. `pairs` gives the rows of a
        join with a side that Spark reads, and is needed for such."""
        self._begin()
        for table, rows in batches:
            self.step({table: _came(rows)})
        self._end(pairs)

    def load_in_turn(
        self,
        turns: Sequence[Turn],
        rows_of: Callable[[Turn], Iterable[pa.Table]],
        pairs: Callable[[Readable], Iterable[Batch]] | None = None,
    ) -> None:
        """Fill a circuit by the rows of each turn, requested after those before it are processed.
        Sides that are not kept are dropped once nothing needs them, unless they fit and are kept
        after all."""
        self._begin()
        waiting = set(range(len(self.compiled.sources)))
        for turn in turns:
            self.circuit.ended([at not in waiting for at in range(len(self.compiled.sources))])
            for rows in rows_of(turn):
                self._step({turn.table: _came(rows)}, turn.sources)
            waiting -= turn.sources
        self._end(pairs)

    def turns(self, rows: Callable[[TableName], float]) -> list[Turn]:
        """The order of filling: scalars before what they select, and smaller tables, by `rows`,
        first, as later rows look them up."""
        turns = []
        for sources in self.compiled.turns():
            tables = dict.fromkeys(self.compiled.sources[at].table for at in sorted(sources))
            for table in sorted(tables, key=rows):
                own = (at for at in sources if self.compiled.sources[at].table == table)
                turns.append(Turn(table, frozenset(own)))
        return turns

    def counted_at(self, partition: RangePartition) -> int:
        return self._counted[self.range_rows.slot(partition)][0]

    def give_up(self) -> None:
        """Forget all state of a circuit that failed: it is of no use, and plans refer to it."""
        for keeper in self.circuit.arrangements():
            keeper.clear()

    def _begin(self) -> None:
        self.count(self.circuit.start())
        self.circuit.fill(True)

    def _end(self, pairs: Callable[[Readable], Iterable[Batch]] | None) -> None:
        for join in self.compiled.distant:
            if join.joined is None:
                continue
            assert pairs is not None, "the pairs of a join whose sides Spark reads are its own"
            for batch in pairs(join.joined):
                self.count(self.circuit.resume(batch, join.operator))
        for held_back in self.circuit.filled():
            self.count(held_back)
        self.compiled = self.compiled.keeping(self.circuit.keep_at_hand())
        self.circuit.fill(False)
        for keeper in self.keepers():
            keeper.compact()

    def ranges(self) -> Mapping[AccessId, RangeSet]:
        """The sketch of every access."""
        return {
            access: RangeSet.from_mask(self.merge.members(at))
            for at, access in enumerate(self.compiled.accesses)
        }

    def unsure_rows(self) -> int:
        """How often a row was kept because its HAVING was too close to call."""
        return self.circuit.unsure_rows

    def refilled(self) -> tuple[int, int]:
        """Groups whose buffer was refilled so far, and the rows read for that."""
        refills = self.compiled.refills
        return sum(one.groups for one in refills), sum(one.rows for one in refills)

    def refills(self) -> Mapping[str, tuple[int, int, float]]:
        """Groups refilled, rows read for that, and milliseconds, per piece bounded by choice or
        wish."""
        pieces = {one.piece for one in self.compiled.buffers if not one.pinned}
        return {
            one.operator.piece: (one.groups, one.rows, one.ms)
            for one in self.compiled.refills
            if one.operator.piece in pieces
        }

    def recomputations(self) -> int:
        """How often a recursion was computed again so far, since most of its rows were deleted."""
        return sum(one.recomputations for one in self.circuit if isinstance(one, FixpointOperator))

    def tree_work(self) -> tuple[int, int, int]:
        """Tuples touched, flips and pairs of all join trees so far."""
        result = self.circuit.counters() if self.compiled.shapes else {}
        touched, flips, pairs = (
            sum(number for name, number in result.items() if name.endswith(f".{what}"))
            for what in ("touched", "flips", "pairs")
        )
        return touched, flips, pairs

    def checkpoint(self) -> Checkpoint:
        """The changes since the last `saved`."""
        return checkpoint_of(self.keepers(), self.circuit.counters())

    def saved(self) -> None:
        """The last checkpoint is committed."""
        for keeper in self.keepers():
            keeper.saved()

    def state_bytes(self) -> int:
        """Bytes of keyed state held."""
        return sum(keeper.bytes_held for keeper in self.keepers())


# A circuit's state under new ranges, derived from its state under the old ones. Law: after
# `rederived` the circuit is as if it had been filled under the new ranges. That is possible where
# the state of the first grouping, or the counts at the root, say all about the rows below: plans
# of one table without joins, set operations, extremes or DISTINCT inside aggregates. Ranges that
# live on whole in a new range are renumbered, those of one new range added up; the rows of ranges
# that were split are needed again, and nothing else of the table, since only they tell the parts
# apart. A grouping by the attribute itself needs no rows at all.


def can_rederive(compiled: Dataflow) -> bool:
    """Whether this circuit's state can be converted to other ranges."""
    return compiled.chain is not None


def needs_rows(compiled: Dataflow, renumbering: Renumbering) -> bool:
    """Whether the rows of split ranges have to be read again."""
    if not bool((renumbering.targets < 0).any()):
        return False
    return compiled.chain is None or not compiled.chain.is_keyed


def converted_session(
    held: MaintainedQuery, compiled: Dataflow, renumbering: Renumbering, rows: Iterable[pa.Table]
) -> MaintainedQuery:
    """A session on `compiled`, the circuit of the same plan under the new ranges. `rows` are those
    of the split ranges, with the columns the circuit reads; none unless `needs_rows`. The caller
    fills the rows per range."""
    chain, before = compiled.chain, held.compiled.chain
    assert chain is not None
    assert before is not None
    session = MaintainedQuery(compiled)
    session.count(chain.start())
    (source,) = compiled.sources
    batches = map(source.came, rows)
    if chain.first is not None:
        session.count(chain.adopt(before, renumbering, batches))
        return session
    session.count(_renumbered(held, renumbering))
    for batch in batches:
        session.count(compiled.circuit.step(batch))
    return session


def _renumbered(held: MaintainedQuery, renumbering: Renumbering) -> Batch:
    """Without a grouping a result row has one range, so the root's counts add up."""
    (counts,) = held.merge.counts
    kept = np.flatnonzero((renumbering.targets >= 0) & (counts > 0))
    return Batch({}, counts[kept], (RowTags(renumbering.targets[kept].astype(np.int32)),))


# In which order the tables of a side are read for some keys, and by which values each. Law: a row
# that is left out is in no row of the side that has one of the keys. Of a relation whose column
# is the key the rows with these keys are enough; of one that is joined to relations read before,
# those with values that these have (`rules.pushdown`: the side yields the same without the
# others). First comes what the keys narrow, then what is tied to it; where nothing is found of
# what the side is nothing without (`plan.properties`), the rest is not read at all.

ReadRows = Callable[[Source, Mapping[ColumnName, Sequence[Vector]]], pa.Table]
"""Rows of a source's table with one of each list's values in each of these columns; it may return
more. Columns come in any order."""

_MOST_VALUES = 2_000_000
"""With more values than this a lookup does not pay; the relation is read without."""


def read_in_turn(
    wanted: Readable,
    sources: Mapping[AccessId, Source],
    keys: Sequence[Vector],
    sizes: Mapping[AccessId, int],
    read: ReadRows,
) -> Mapping[AccessId, pa.Table] | None:
    """Rows of every access of the side for these keys; without keys, all. None if a required access
    yields none. `sizes` are approximate rows per access: of those that can be narrowed equally the
    smallest is read first."""
    by_keys, vital = _behind_keys(wanted, keys), indispensable(wanted.rows)
    ties = [
        tied
        for tied in tied_columns(wanted.rows)
        if tied.column.attribute.type == tied.to.attribute.type
    ]
    result: dict[AccessId, pa.Table] = {}
    batches: dict[AccessId, Batch] = {}
    while len(result) < len(sources):
        asked = {
            access: _asked(access, by_keys, ties, batches)
            for access in sources
            if access not in result
        }
        # What something narrows before what nothing does, then the smaller one.
        access = min(asked, key=lambda one: (not asked[one], sizes[one]))
        source = sources[access]
        rows = read(source, asked[access])
        batch = source.came(rows)
        kept = passing(tuple(reversed(source.conditions)), batch)
        if access in vital and not bool(kept.any()):
            return None
        result[access] = rows.filter(pa.array(kept))
        batches[access] = batch.keep(kept)
    return result


def _behind_keys(
    wanted: Readable, keys: Sequence[Vector]
) -> Mapping[AccessId, Mapping[ColumnName, Vector]]:
    """Per access the values of the keys that are its own columns."""
    result: dict[AccessId, dict[ColumnName, Vector]] = {}
    for key, values in zip(wanted.keys, keys, strict=bool(keys)):
        column = column_behind(wanted.rows, key)
        if column is not None and column.attribute.type == values.type:
            result.setdefault(column.access, {})[column.attribute.name] = values
    return result


def _asked(
    access: AccessId,
    by_keys: Mapping[AccessId, Mapping[ColumnName, Vector]],
    ties: Sequence[ColumnTie],
    batches: Mapping[AccessId, Batch],
) -> Mapping[ColumnName, Sequence[Vector]]:
    asked: dict[ColumnName, list[Vector]] = {
        name: [values] for name, values in by_keys.get(access, {}).items()
    }
    for tied in ties:
        if tied.column.access == access and tied.to.access in batches:
            values = batches[tied.to.access].columns[tied.to.attribute.id]
            if len(values) <= _MOST_VALUES:
                asked.setdefault(tied.column.attribute.name, []).append(values)
    return asked


# State handed over to a circuit of the same plan that keeps other sides of its joins, or groups,
# or other buffers. Law (of replaced state): a side holds the rows of its flow as they are at the
# versions the state stands at, so it can be left out for a filter of their keys, and made again
# of rows that are read at these versions; groups are made of the rows below them in the same way.
# Of first rows and values of MIN and MAX the best are told by all, and all by the rows that fill
# buffers again. What both circuits keep is not touched; sketches and counts are the same bit for
# bit. Source: shared rule of state that is left out (docs/decisions/0099), after D. Tang et al.,
# "Intermittent query processing" (PVLDB 2019), section 4.

ReadWhole = Callable[[str], Iterable[Batch]]
"""All rows of a side, or below a grouping, by its name, at the versions of the state; in parts."""


def transfer_state(
    before: MaintainedQuery, after: MaintainedQuery, read: ReadWhole, table_rows: TableRows
) -> None:
    """Give `after`, which restored what both keep, what it alone keeps or reads. Both readers give
    rows at the versions of the state, and so do those of groups that `before` reads, in case a
    buffer is above them."""
    held = sides_of(before)
    for join in after.circuit:
        for at, side in enumerate(join.indexes):
            known = held[side.name]
            if isinstance(side, DistantRows) and isinstance(known, RowIndex):
                side.know(known.codes())
            elif isinstance(side, RowIndex) and isinstance(known, DistantRows):
                for rows in read(side.name):
                    join.keep_again(at, rows)
    for was, now in zip(before.circuit, after.circuit, strict=True):
        if now.group_keys and now.reads and not was.reads:
            now.know(was.group_codes())
        elif now.group_keys and was.reads and not now.reads:
            for rows in read(now.piece):
                now.keep_again(0, rows)
        elif now.is_bounded and not was.is_bounded:
            now.shed()
        elif was.is_bounded and not now.is_bounded and not now.reads:
            refilled = next(one for one in before.compiled.refills if one.operator is was)
            now.keep_all(refilled.whole(table_rows))


def filled_rows(session: MaintainedQuery) -> Mapping[str, int]:
    """Rows of each side and groups of each grouping that is not kept, counted during the fill."""
    return {one.name: one.filled_rows for one in session.circuit.reads}


def group_bytes(session: MaintainedQuery) -> Mapping[str, int]:
    """Bytes of the groups of each grouping that keeps none, counted during the fill."""
    readers = (one for one in session.circuit if one.group_keys and one.reads)
    return {one.piece: one.group_bytes() for one in readers}


def buffer_groups(session: MaintainedQuery) -> Mapping[str, int]:
    """Groups with first rows of each piece that could be bounded."""
    # The grouping itself reports values, even for all rows among grouping sets.
    choices = (one for one in session.compiled.buffers if not one.is_values)
    names = {one.piece for one in choices if not one.pinned}
    return {one.piece: one.buffer_groups() for one in session.circuit if one.piece in names}


def sides_of(session: MaintainedQuery) -> Mapping[str, RowIndex | DistantRows]:
    """The sides of a circuit's joins, by name."""
    return {side.name: side for operator in session.circuit for side in operator.indexes}


# A query whose sketch only grows: the ranges of all changed rows are added. Law: sound for a plan
# keyed on its one sketched access, for any aggregate, because a change then concerns the ranges
# of the changed rows only. So it does where conditions on rows moved with the clock: rows that
# meet those before or those after, not both, are what changed above them. No state but the rows
# per range, which show drift.


class TouchedQuery:
    """A query in touch mode: the sketch on `partition`."""

    def __init__(self, partition: RangePartition, ranges: RangeSet) -> None:
        self.partition = partition
        self.ranges = ranges
        self.range_rows = RangeRows([partition])

    def restore(self, runs: Mapping[str, Sequence[tuple[int, StoredTable]]]) -> None:
        """Restore the counts of a checkpoint."""
        self.range_rows.load(runs)

    def step(self, change: TableChange) -> RangeSet:
        """Add the ranges of the changed rows; return the sketch after that."""
        column = from_arrow(change.rows.column(self.partition.attribute), self.partition.type)
        result = self.partition.range_ids_of(column).astype(np.int64)
        self.range_rows.count(0, result, change.weights)
        return self._added(result)

    def move(self, rows: Iterable[Batch]) -> int:
        """Add the ranges of rows that the clock inserted or deleted; return how many there are."""
        count = 0
        for batch in rows:
            count += len(batch)
            (tags,) = batch.tags
            slots = np.zeros(len(batch), dtype=np.int64)
            self._added(tags.expand(slots, batch.weights).ranges)
        return count

    def _added(self, result: Ints) -> RangeSet:
        mask = np.zeros(self.partition.size, dtype=np.bool_)
        mask[result] = True
        self.ranges = self.ranges.union(RangeSet.from_mask(mask))
        return self.ranges

    def checkpoint(self) -> Checkpoint:
        """The changes since the last `saved`."""
        return checkpoint_of(self.range_rows.arrangements(), {})

    def saved(self) -> None:
        """The last checkpoint is committed."""
        for arrangement in self.range_rows.arrangements():
            arrangement.saved()

    def state_bytes(self) -> int:
        """Bytes of keyed state held."""
        return sum(arrangement.bytes_held for arrangement in self.range_rows.arrangements())


def judged_alone(moved: MovedConditions) -> MovedConditions | None:
    """The conditions without those that only Spark can evaluate; None if one of these moved. A row
    that meets all old and not all new conditions does so for the remaining ones."""
    before, after = (
        tuple(part for predicate in predicates for part in conjuncts(predicate))
        for predicates in (moved.before, moved.after)
    )
    left_out = {part for part in (*before, *after) if find_condition_blocker(part) is not None}
    if any((part in before) != (part in after) for part in left_out):
        return None
    sides = (tuple(p for p in parts if p not in left_out) for parts in (before, after))
    return MovedConditions(*sides)


def touched_source(scan: Scan, moved: MovedConditions, partition: RangePartition) -> Source | None:
    """A source that reads from a table what these conditions and the ranges need."""
    used = frozenset().union(*map(columns_of, (*moved.before, *moved.after)))
    columns = [(a.id, a.name, a.type) for a in scan.attributes if a.id in used]
    known = [(i, name, kind) for i, name, kind in columns if kind and kind.kind is not Kind.OTHER]
    if len(known) < len(columns):
        return None
    return Source(scan.access, scan.table, ScanOperator(known, (partition,)))

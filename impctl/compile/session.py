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
from impctl.engine.linear import Merge
from impctl.engine.linear import TableScan as ScanOperator
from impctl.engine.lookups import DistantRows, RowReader
from impctl.engine.tags import RowTags
from impctl.engine.trace import RowIndex
from impctl.expr.evaluate import Condition, find_condition_blocker
from impctl.expr.nodes import Expr, conjuncts
from impctl.plan.lineage import MovedConditions
from impctl.plan.properties import indispensable
from impctl.rules.pushdown import ColumnTie, column_behind, tied_columns
from impctl.sketch.sketch import RangeSet, Renumbering
from impctl.types import AccessId, ColumnName, TableName

if TYPE_CHECKING:
    from impctl.compile.buffers import TableRows
    from impctl.compile.compile import Dataflow
    from impctl.compile.fill import Partials
    from impctl.data.pages import StoredTable
    from impctl.engine.circuit import Circuit
    from impctl.engine.operator import Keeper, Operator
    from impctl.plan.nodes import Scan
    from impctl.sketch.sketch import RangePartition


class Checkpoint(Struct, frozen=True):
    """All changes of state since the last saved checkpoint: runs to put, as (arrangement, sequence,
    table), runs to drop, and counters."""

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


# Rows that enter or leave a query because constants in its conditions moved. With O and N the old
# and new conditions, D a table's change and T the table after it, the output of the selections
# changes by O(D) + N(T) - O(T): it was O(T - D) and becomes N(T). All rows of a step are one
# batch, so that a buffer refilled from the table is in step with it.

Moves = Mapping[AccessId, MovedConditions]
Moving = tuple[Source, MovedConditions]  # A source with the moving parts of the conditions above it
MovedRows = Callable[[Sequence[Moving]], Iterable[pa.Table]]
"""Rows of the one table that these sources read, after the change: at least those for which some
source's moved conditions change the outcome. Columns come in any order."""


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
    for movings in by_table.values():
        for table in rows(movings):
            moves_for_any = np.zeros(len(table), dtype=np.bool_)
            for source, moved in movings:
                batch, positions = differing_rows(source, moved, table)
                moves_for_any[positions] = True
                result[source.access].append(batch)
            count += int(moves_for_any.sum())
    return result, count


def moved_batch(
    moved: MovedConditions, change: Batch | None, moved_rows: Sequence[Batch]
) -> Batch | None:
    """The change behind the selections of a source; None for no change."""
    parts = [] if change is None else [change.keep(passing(moved.before, change))]
    nonempty = [part for part in (*parts, *moved_rows) if len(part)]
    return stacked_batches(nonempty) if nonempty else None


def differing_rows(source: Source, moved: MovedConditions, table: pa.Table) -> tuple[Batch, Ints]:
    """The inserted (+1) and deleted (-1) rows of these, and their positions."""
    batch = source.inserted(table)
    sign = passing(moved.after, batch).astype(np.int64)
    sign -= passing(moved.before, batch).astype(np.int64)
    positions = np.flatnonzero(sign)
    changed = batch.take(positions)
    return Batch(changed.columns, sign[positions], changed.tags), positions


def passing(predicates: Sequence[Expr], batch: Batch) -> Bools:
    """Which rows of a batch pass selections, the lowest first; each sees what those below left.
    NotExactError if that is too close to call."""
    positions = np.arange(len(batch), dtype=np.int64)
    for predicate in predicates:
        rows = batch if len(positions) == len(batch) else batch.take(positions)
        if len(rows):
            positions = positions[Condition(predicate).truth(rows.columns, len(rows)).sure_true()]
    mask = np.zeros(len(batch), dtype=np.bool_)
    mask[positions] = True
    return mask


# Constants that moved above stored state. With A the input of a stateless operator before a step,
# d its change, and O and N the operator with the old and new constants, its output changes by
# N(A + d) - O(A) = N(d) + N(A) - O(A). The new circuit's step gives N(d); `turned` gives the rest.
# A comes from the state of the grouping or join below, before the step, through the operators
# between with the old constants. Cost: the rows of A, and what depends on the changed output.


class MovedAbove(Struct, frozen=True):
    """The positions of operators whose constants moved, and the circuit with the old ones."""

    before: Circuit
    positions: tuple[int, ...]


def moved_above(before: Dataflow, after: Dataflow, moves: Moves) -> MovedAbove | None:
    """The operators whose constants moved, except conditions that `moves` has. None if the state of
    the one circuit is not that of the other."""
    if not _are_alike(before, after):
        return None
    selections = {
        after.circuit.place_of(operator)
        for index, source in enumerate(after.sources)
        if source.access in moves
        for operator in after.circuit.selections_above(index, len(moves[source.access].after))
    }
    pairs = enumerate(zip(before.circuit, after.circuit, strict=True))
    positions = [
        position
        for position, (old, new) in pairs
        if position not in selections and not new.says_like(old)
    ]
    return MovedAbove(before.circuit, tuple(positions))


def why_not_computable(circuit: Circuit, above: MovedAbove) -> str | None:
    """Why the rows below one of these operators cannot be computed from the state, if so."""
    operators = tuple(circuit)
    for position in above.positions:
        wire = circuit.wires[position][0]
        while wire >= 0 and not circuit.can_output_at(wire):
            lower = [below for below in circuit.wires[wire] if not circuit.can_output_at(below)]
            if not operators[wire].is_linear:
                return "it is used above a LIMIT or a join whose rows are not all stored"
            wire = lower[0]
        if wire < 0:
            return "it is used with rows of a table, but not in a condition on single rows"
    return None


def rows_of_moved_constants(
    circuit: Circuit, before: Circuit, positions: tuple[int, ...]
) -> Mapping[int, Batch]:
    """The output of these operators beside the next step's own; call it before the step."""
    old = tuple(before)
    result = {}
    for index, operator in enumerate(circuit):
        if index in positions:
            (wire,) = circuit.wires[index]
            rows = circuit.output_at(wire, before)
            batch = operator.turned(rows, old[index]) if len(rows) else rows
            if len(batch):
                result[index] = batch
    return result


def _are_alike(before: Dataflow, after: Dataflow) -> bool:
    """Whether the circuits differ only in what operators without state compute. Plans that differ
    in constants alone get other operators only if these merge conditions or arguments, or change
    the join order."""
    sources = [
        [(source.access, source.scan.columns, source.scan.partitions) for source in flow.sources]
        for flow in (before, after)
    ]
    old, new = tuple(before.circuit), tuple(after.circuit)
    return (
        sources[0] == sources[1]
        and before.circuit.wires == after.circuit.wires
        and len(old) == len(new)
        and all(operator.keeps_like(other) for operator, other in zip(old, new, strict=True))
    )


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
    """One turn of filling a circuit: a table and the positions of the sources that read it."""

    table: TableName
    sources: frozenset[int]


def _inserted(rows: pa.Table) -> TableChange:
    return TableChange(rows, np.ones(len(rows), dtype=np.int64))


class MaintainedQuery:
    """A compiled query at a version: the circuit and the merge on top of it. Sketch and state move
    together; a session restored from `checkpoint` continues as if never stopped."""

    def __init__(self, compiled: Dataflow) -> None:
        self.compiled = compiled
        self.merge = Merge(compiled.sizes)
        self.range_rows = RangeRows(
            part for source in compiled.sources for part in source.scan.partitions
        )
        # Source, tag and slot: accesses of one partition all see the same rows, so one counts.
        self._counted: dict[int, tuple[int, int]] = {}
        for index, source in enumerate(compiled.sources):
            for tag, partition in enumerate(source.scan.partitions):
                self._counted.setdefault(self.range_rows.slot(partition), (index, tag))

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
    ) -> None:
        """Maintain by changes of tables; those not named did not change. `table_rows` reads the
        tables after the change, to refill bounded buffers."""
        if table_rows is not None:
            for refilled in self.compiled.refills:
                refilled.read_from(table_rows)
        self._step(changes)

    def _step(
        self, changes: Mapping[TableName, TableChange], sources: Collection[int] | None = None
    ) -> None:
        batches = self._read(changes, sources)
        self._count_rows(batches)
        self.count(self.circuit.step(*batches))

    def move(
        self,
        changes: Mapping[TableName, TableChange],
        moves: Moves,
        moved_rows: MovedRows,
        table_rows: TableRows,
        above: MovedAbove | None = None,
    ) -> int:
        """Maintain as `step` does while conditions become those of this circuit's plan. The state
        is that of the old conditions, and of the old constants in operators that moved `above`.
        Returns how many rows moved in or out: of tables (each row counts once), and of state."""
        for refilled in self.compiled.refills:
            refilled.read_from(table_rows)
        batches = self._read(changes)
        self._count_rows(batches)
        past: dict[Operator, Batch] = {}
        turned: Mapping[int, Batch] = {}
        if above is not None:
            turned = rows_of_moved_constants(self.circuit, above.before, above.positions)
        batches_by_access, count = moved_batches(self.compiled.sources, moves, moved_rows)
        count += sum(map(len, turned.values()))
        for index, source in enumerate(self.compiled.sources):
            moved = moves.get(source.access)
            if moved is None:
                continue
            *_, top = self.circuit.selections_above(index, len(moved.after))
            result = moved_batch(moved, batches[index], batches_by_access[source.access])
            batches[index] = None
            if result is not None:
                past[top] = result
        self.count(self.circuit.step_past(batches, past, turned))
        return count

    def _read(
        self, changes: Mapping[TableName, TableChange], sources: Collection[int] | None = None
    ) -> list[Batch | None]:
        batches: list[Batch | None] = []
        for index, source in enumerate(self.compiled.sources):
            change = changes.get(source.table)
            if change is None or (sources is not None and index not in sources):
                batches.append(None)
            else:
                batches.append(source.scan.read(change.rows, change.weights, change.shared))
        return batches

    def count(self, output: Batch | None) -> None:
        """Count a change of the circuit's output in the sketches."""
        if output is not None:
            self.merge.step(output)

    def fill(self, pass_: Partials, groups: pa.Table, partition: RangePartition) -> None:
        """Fill a fresh circuit that has a chain with the rows of a pass."""
        self.count(self._chain.start())
        self.count(self._chain.absorb(pass_, groups, partition, 1))

    @property
    def _chain(self) -> Chain:
        assert self.compiled.chain is not None
        return self.compiled.chain

    def absorb(
        self,
        pass_: Partials,
        inserted: GroupedRows,
        deleted: GroupedRows,
        partition: RangePartition,
    ) -> None:
        """Maintain by a change that was grouped elsewhere, for a circuit that has a chain. Inserted
        rows go first, since deleted rows may be among them."""
        for sign, part in ((1, inserted), (-1, deleted)):
            self.count(self._chain.absorb(pass_, part.groups, partition, sign))
            ranges = np.arange(len(part.range_rows), dtype=np.int64)
            slot = self.range_rows.slot(partition)
            self.range_rows.count(slot, ranges, part.range_rows * sign)

    def _count_rows(self, batches: Sequence[Batch | None]) -> None:
        for slot, (index, tag) in self._counted.items():
            batch = batches[index]
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
        """Fill a fresh circuit with all rows of its tables. `pairs` gives the rows of a join with a
        side that Spark reads."""
        self._begin()
        for table, rows in batches:
            self.step({table: _inserted(rows)})
        self._end(pairs)

    def load_in_turn(
        self,
        turns: Sequence[Turn],
        rows_of: Callable[[Turn], Iterable[pa.Table]],
        pairs: Callable[[Readable], Iterable[Batch]] | None = None,
    ) -> None:
        """Fill a circuit turn by turn. Sides that are not kept are dropped once nothing needs them,
        unless they fit and are kept after all."""
        self._begin()
        waiting = set(range(len(self.compiled.sources)))
        for turn in turns:
            self.circuit.ended([i not in waiting for i in range(len(self.compiled.sources))])
            for rows in rows_of(turn):
                self._step({turn.table: _inserted(rows)}, turn.sources)
            waiting -= turn.sources
        self._end(pairs)

    def turns(self, rows: Callable[[TableName], float]) -> list[Turn]:
        """The order of filling: scalars before what they select, then smaller tables (by `rows`)
        first, as later rows look them up."""
        turns = []
        for sources in self.compiled.turns():
            names = dict.fromkeys(self.compiled.sources[i].table for i in sorted(sources))
            for table in sorted(names, key=rows):
                indexes = (i for i in sources if self.compiled.sources[i].table == table)
                turns.append(Turn(table, frozenset(indexes)))
        return turns

    def counting_source(self, partition: RangePartition) -> int:
        return self._counted[self.range_rows.slot(partition)][0]

    def give_up(self) -> None:
        """Drop all state of a circuit that failed, since plans still refer to the circuit."""
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
        return {
            access: RangeSet.from_mask(self.merge.members(index))
            for index, access in enumerate(self.compiled.accesses)
        }

    def unsure_rows(self) -> int:
        """How often a row was kept because its HAVING was too close to call."""
        return self.circuit.unsure_rows

    def refilled(self) -> tuple[int, int]:
        """Groups whose buffer was refilled so far, and the rows read for that."""
        refills = self.compiled.refills
        return sum(refill.groups for refill in refills), sum(refill.rows for refill in refills)

    def refills(self) -> Mapping[str, tuple[int, int, float]]:
        """Groups refilled, rows read for that, and milliseconds, per piece bounded by choice or
        wish."""
        pieces = {buffer.piece for buffer in self.compiled.buffers if not buffer.pinned}
        return {
            refill.operator.piece: (refill.groups, refill.rows, refill.ms)
            for refill in self.compiled.refills
            if refill.operator.piece in pieces
        }

    def recomputations(self) -> int:
        """How often a recursion was recomputed so far because most of its rows were deleted."""
        return sum(
            operator.recomputations
            for operator in self.circuit
            if isinstance(operator, FixpointOperator)
        )

    def tree_work(self) -> tuple[int, int, int]:
        """Tuples touched, flips and pairs of all join trees so far."""
        result = self.circuit.counters() if self.compiled.shapes else {}
        touched, flips, pairs = (
            sum(number for name, number in result.items() if name.endswith(f".{suffix}"))
            for suffix in ("touched", "flips", "pairs")
        )
        return touched, flips, pairs

    def checkpoint(self) -> Checkpoint:
        """The changes since the last `saved`."""
        return checkpoint_of(self.keepers(), self.circuit.counters())

    def saved(self) -> None:
        for keeper in self.keepers():
            keeper.saved()

    def state_bytes(self) -> int:
        return sum(keeper.bytes_held for keeper in self.keepers())


# Conversion of state to new ranges: the circuit is then as if filled under the new ranges. This is
# possible where the first grouping's state, or the counts at the root, determine everything above:
# plans of one table without joins, set operations, extremes or DISTINCT inside aggregates. Ranges
# merged whole into a new range are renumbered and summed. Only the rows of split ranges are read
# again; a grouping by the partition attribute needs none.


def needs_rows(compiled: Dataflow, renumbering: Renumbering) -> bool:
    """Whether the rows of split ranges have to be read again."""
    if not bool((renumbering.targets < 0).any()):
        return False
    return compiled.chain is None or not compiled.chain.is_keyed


def converted_session(
    session: MaintainedQuery, compiled: Dataflow, renumbering: Renumbering, rows: Iterable[pa.Table]
) -> MaintainedQuery:
    """A session on `compiled`, the circuit of the same plan under the new ranges. `rows` are those
    of the split ranges, with the columns the circuit reads; none unless `needs_rows`. The caller
    sets the row counts per range."""
    chain, before = compiled.chain, session.compiled.chain
    assert chain is not None
    assert before is not None
    result = MaintainedQuery(compiled)
    result.count(chain.start())
    (source,) = compiled.sources
    batches = map(source.inserted, rows)
    if chain.first is not None:
        result.count(chain.adopt(before, renumbering, batches))
        return result
    result.count(_renumbered(session, renumbering))
    for batch in batches:
        result.count(compiled.circuit.step(batch))
    return result


def _renumbered(session: MaintainedQuery, renumbering: Renumbering) -> Batch:
    """Without a grouping a result row has one range, so the root's counts add up."""
    (counts,) = session.merge.counts
    indexes = np.flatnonzero((renumbering.targets >= 0) & (counts > 0))
    return Batch({}, counts[indexes], (RowTags(renumbering.targets[indexes].astype(np.int32)),))


# Reading the tables of a side for some keys. A skipped row contributes to no row of the side with
# one of the keys. A relation is narrowed by the keys that are its columns, and by the values of
# columns it is joined to in relations read before (`rules.pushdown`). Narrowed relations are read
# first. If a relation that the side needs (`plan.properties`) yields no rows, nothing else is
# read.

ReadRows = Callable[[Source, Mapping[ColumnName, Sequence[Vector]]], pa.Table]
"""Rows of a source's table with one of each list's values in each of these columns; it may return
more. Columns come in any order."""

_MOST_VALUES = 2_000_000
"""With more values than this a lookup does not pay; the relation is read without."""


def read_in_turn(
    side: Readable,
    sources: Mapping[AccessId, Source],
    keys: Sequence[Vector],
    sizes: Mapping[AccessId, int],
    read: ReadRows,
) -> Mapping[AccessId, pa.Table] | None:
    """Rows of every access of the side for these keys; without keys, all. None if a required access
    yields none. `sizes` are approximate rows per access: of those that can be narrowed equally the
    smallest is read first."""
    by_keys, vital = _values_of_keys(side, keys), indispensable(side.rows)
    ties = [
        tied
        for tied in tied_columns(side.rows)
        if tied.column.attribute.type == tied.to.attribute.type
    ]
    result: dict[AccessId, pa.Table] = {}
    batches: dict[AccessId, Batch] = {}
    while len(result) < len(sources):
        values_by_access = {
            access: _values_to_read(access, by_keys, ties, batches)
            for access in sources
            if access not in result
        }
        # What something narrows before what nothing does, then the smaller one.
        access = min(
            values_by_access,
            key=lambda candidate: (not values_by_access[candidate], sizes[candidate]),
        )
        source = sources[access]
        rows = read(source, values_by_access[access])
        batch = source.inserted(rows)
        passed = passing(tuple(reversed(source.conditions)), batch)
        if access in vital and not bool(passed.any()):
            return None
        result[access] = rows.filter(pa.array(passed))
        batches[access] = batch.keep(passed)
    return result


def _values_of_keys(
    side: Readable, keys: Sequence[Vector]
) -> Mapping[AccessId, Mapping[ColumnName, Vector]]:
    """Per access the values of the keys that are its own columns."""
    result: dict[AccessId, dict[ColumnName, Vector]] = {}
    for key, values in zip(side.keys, keys, strict=bool(keys)):
        column = column_behind(side.rows, key)
        if column is not None and column.attribute.type == values.type:
            result.setdefault(column.access, {})[column.attribute.name] = values
    return result


def _values_to_read(
    access: AccessId,
    by_keys: Mapping[AccessId, Mapping[ColumnName, Vector]],
    ties: Sequence[ColumnTie],
    batches: Mapping[AccessId, Batch],
) -> Mapping[ColumnName, Sequence[Vector]]:
    result = {name: [values] for name, values in by_keys.get(access, {}).items()}
    for tied in ties:
        if tied.column.access == access and tied.to.access in batches:
            values = batches[tied.to.access].columns[tied.to.attribute.id]
            if len(values) <= _MOST_VALUES:
                result.setdefault(tied.column.attribute.name, []).append(values)
    return result


# State transfer to a circuit of the same plan that keeps other join sides, groups or buffers. A
# side holds the rows of its flow at the state's versions, so it can be replaced by a filter of
# their keys, and rebuilt from rows read at these versions; so can groups. Bounded buffers are cut
# from unbounded ones, and filled from the rows below. State that both circuits keep is not
# touched; sketches and counts stay the same bit for bit. Source: docs/decisions/0097, after D.
# Tang et al., "Intermittent query processing" (PVLDB 2019), section 4.

ReadWhole = Callable[[str], Iterable[Batch]]
"""All rows of a side, or below a grouping, by its name, at the versions of the state; in parts."""


def transfer_state(
    before: MaintainedQuery, after: MaintainedQuery, read: ReadWhole, table_rows: TableRows
) -> None:
    """Give `after`, which has restored the common state, the state that it alone keeps. All readers
    give rows at the versions of the state, also those of groups that `before` reads."""
    sides = sides_of(before)
    for join in after.circuit:
        for index, side in enumerate(join.indexes):
            old_side = sides[side.name]
            if isinstance(side, DistantRows) and isinstance(old_side, RowIndex):
                side.know(old_side.codes())
            elif isinstance(side, RowIndex) and isinstance(old_side, DistantRows):
                for rows in read(side.name):
                    join.keep_again(index, rows)
    for old, new in zip(before.circuit, after.circuit, strict=True):
        if new.group_keys and new.reads and not old.reads:
            new.know(old.group_codes())
        elif new.group_keys and old.reads and not new.reads:
            for rows in read(new.piece):
                new.keep_again(0, rows)
        elif new.is_bounded and not old.is_bounded:
            new.shed()
        elif old.is_bounded and not new.is_bounded and not new.reads:
            refilled = next(refill for refill in before.compiled.refills if refill.operator is old)
            new.keep_all(refilled.whole(table_rows))


def filled_rows(session: MaintainedQuery) -> Mapping[str, int]:
    """Rows of each side and groups of each grouping that is not kept, counted during the fill."""
    return {read.name: read.filled_rows for read in session.circuit.reads}


def group_bytes(session: MaintainedQuery) -> Mapping[str, int]:
    """Bytes of the groups of each grouping that keeps none, counted during the fill."""
    readers = (operator for operator in session.circuit if operator.group_keys and operator.reads)
    return {reader.piece: reader.group_bytes() for reader in readers}


def buffer_groups(session: MaintainedQuery) -> Mapping[str, int]:
    """Groups with first rows of each piece that could be bounded."""
    # The grouping itself reports values, even for all rows among grouping sets.
    choices = (buffer for buffer in session.compiled.buffers if not buffer.is_values)
    names = {choice.piece for choice in choices if not choice.pinned}
    return {
        operator.piece: operator.buffer_groups()
        for operator in session.circuit
        if operator.piece in names
    }


def sides_of(session: MaintainedQuery) -> Mapping[str, RowIndex | DistantRows]:
    return {side.name: side for operator in session.circuit for side in operator.indexes}


class TouchedQuery:
    """A query in touch mode, whose sketch on `partition` only grows by the ranges of changed rows.
    This is sound for a plan keyed on its one sketched access, whatever its aggregates: a change
    then concerns the ranges of the changed rows only. The same holds for rows that pass only the
    old or only the new conditions when the clock moves. The state is the rows per range."""

    def __init__(self, partition: RangePartition, ranges: RangeSet) -> None:
        self.partition = partition
        self.ranges = ranges
        self.range_rows = RangeRows([partition])

    def restore(self, runs: Mapping[str, Sequence[tuple[int, StoredTable]]]) -> None:
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
        return checkpoint_of(self.range_rows.arrangements(), {})

    def saved(self) -> None:
        for arrangement in self.range_rows.arrangements():
            arrangement.saved()

    def state_bytes(self) -> int:
        return sum(arrangement.bytes_held for arrangement in self.range_rows.arrangements())


def judged_alone(moved: MovedConditions) -> MovedConditions | None:
    """The conditions without those that only Spark can evaluate; None if one of these moved."""
    before, after = (
        tuple(part for predicate in predicates for part in conjuncts(predicate))
        for predicates in (moved.before, moved.after)
    )
    blocked = {part for part in (*before, *after) if find_condition_blocker(part) is not None}
    if any((part in before) != (part in after) for part in blocked):
        return None
    sides = (tuple(p for p in parts if p not in blocked) for parts in (before, after))
    return MovedConditions(*sides)


def touched_source(scan: Scan, moved: MovedConditions, partition: RangePartition) -> Source | None:
    """A source that reads from a table what these conditions and the ranges need."""
    used = frozenset().union(*(expr.columns for expr in (*moved.before, *moved.after)))
    columns = [(a.id, a.name, a.type) for a in scan.attributes if a.id in used]
    known = [(i, name, kind) for i, name, kind in columns if kind and kind.kind is not Kind.OTHER]
    if len(known) < len(columns):
        return None
    return Source(scan.access, scan.table, ScanOperator(known, (partition,)))

"""One query's circuit at a version: step it with changes, checkpoint it, take it up again.

Law: sketch and state move together; what `checkpoint` hands out is all that a later `restore`
needs to go on as if never stopped. Nothing here touches a disk.
Out of scope: reading changes (`tables`), committing checkpoints (`store`), policies (`app`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from impctl.circuits.chain import Chain
from impctl.circuits.checkpoint import Checkpoint, checkpoint_of
from impctl.circuits.compile import Compiled
from impctl.circuits.moved_above import MovedAbove, turned_rows
from impctl.circuits.moving import MovedRows, Moves, moved_batch, moved_batches
from impctl.circuits.partials import Partials
from impctl.circuits.range_rows import RangeRows
from impctl.circuits.reading.readable import Readable
from impctl.circuits.refills import TableRows
from impctl.data.pages import StoredTable
from impctl.data.vector import Ints, Once
from impctl.engine.batch import Batch, loading, unreadable
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.fixpoint import Fixpoint
from impctl.engine.linear import Merge, SketchDelta
from impctl.engine.lookups import RowReader
from impctl.engine.operator import Keeper, Operator
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet
from impctl.types import AccessId, TableName
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class TableChange:
    """Rows of one table with a weight each; has at least the columns its sources read.

    With `shared`, other queries are stepped by the same rows.
    """

    rows: pa.Table
    weights: Ints
    shared: Once | None = None


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows of one table, grouped by a pass of partial aggregates; and how many are in each range.

    `range_rows` has shape (fragments,) and counts all rows, before any selection.
    """

    groups: pa.Table
    range_rows: Ints


@dataclass(frozen=True, slots=True)
class Turn:
    """The rows of a table that come one after the other while a circuit is filled, and the
    positions of the sources that they are for."""

    table: TableName
    sources: frozenset[int]


def _came(rows: pa.Table) -> TableChange:
    return TableChange(rows, np.ones(len(rows), dtype=np.int64))


class MaintainedQuery:
    """A compiled query with its state: the circuit, and on top of it the merge."""

    def __init__(self, compiled: Compiled) -> None:
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
        """Take up the state of a checkpoint; StateCorruptError where it is not this circuit's.

        With `is_converted` it is that of a circuit that keeps other pieces too.
        """
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
        """All state that a checkpoint writes."""
        yield from self.circuit.arrangements()
        yield from self.merge.arrangements()
        yield from self.range_rows.arrangements()

    def step(
        self, changes: Mapping[TableName, TableChange], table_rows: TableRows | None = None
    ) -> Mapping[AccessId, SketchDelta]:
        """Maintain: the changes of tables in, the change of each sketch out.

        All accesses of a table see its change; a table that is not named did not change.
        `table_rows` reads the tables after the change, where a bounded buffer is used up.
        """
        if table_rows is not None:
            for refilled in self.compiled.refills:
                refilled.read_from(table_rows)
        return self._step(changes)

    def _step(
        self, changes: Mapping[TableName, TableChange], sources: Collection[int] | None = None
    ) -> Mapping[AccessId, SketchDelta]:
        """The step, for some of the sources where they are given."""
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
        """Maintain as `step` does while conditions become those of this circuit's plan.

        The state is that of the conditions before, and of the constants before in operators that
        moved `above`. Also gives how many rows came or went: of tables, each row once however often
        its table is read, and of what is kept.
        """
        for refilled in self.compiled.refills:
            refilled.read_from(table_rows)
        batches = self._read(changes)
        self._count_rows(batches)
        past: dict[Operator, Batch] = {}
        turned = {} if above is None else turned_rows(self.circuit, above.before, above.places)
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
        """The change of every source, or of those that are given."""
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
        """Bring a fresh circuit that has a chain to where it stands over the rows of a pass."""
        self.count(self._chain.start())
        self.count(self._chain.absorb(pass_, groups, partition, 1))

    @property
    def _chain(self) -> Chain:
        assert self.compiled.chain is not None
        return self.compiled.chain

    def absorb(
        self, pass_: Partials, came: GroupedRows, went: GroupedRows, partition: RangePartition
    ) -> None:
        """Maintain by a change that was grouped elsewhere, for a circuit that has a chain.

        Rows that came go first: what went was there before, or came with them.
        """
        for sign, part in ((1, came), (-1, went)):
            self.count(self._chain.absorb(pass_, part.groups, partition, sign))
            fragments = np.arange(len(part.range_rows), dtype=np.int64)
            slot = self.range_rows.slot(partition)
            self.range_rows.count(slot, fragments, part.range_rows * sign)

    def _count_rows(self, batches: Sequence[Batch | None]) -> None:
        """Count the rows of every partition."""
        for slot, (at, tag) in self._counted.items():
            batch = batches[at]
            if batch is not None:
                # A scan's rows have one fragment each, so there is a pair per row.
                pairs = batch.tags[tag].expand(batch.weights, batch.weights)
                self.range_rows.count(slot, pairs.fragments, pairs.weights)

    def read_by(self, reader: RowReader) -> None:
        """From the next step on, rows that the circuit does not keep are read by this reader."""
        for side in self.circuit.reads:
            side.reader = reader

    def load(
        self,
        batches: Iterable[tuple[TableName, pa.Table]],
        pairs: Callable[[Readable], Iterable[Batch]] | None = None,
    ) -> None:
        """Bring a fresh circuit to where it stands over these rows, those of whole tables.

        `pairs` gives the rows of a join with a side that Spark reads, and is needed for such.
        """
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
        """The same by the rows of every turn, asked for when those before it are taken up.

        Sides that are not kept are let go as soon as nothing will ask for them, but for those with
        room enough, which are kept after all.
        """
        self._begin()
        waiting = set(range(len(self.compiled.sources)))
        for turn in turns:
            self.circuit.ended([at not in waiting for at in range(len(self.compiled.sources))])
            for rows in rows_of(turn):
                self._step({turn.table: _came(rows)}, turn.sources)
            waiting -= turn.sources
        self._end(pairs)

    def turns(self, rows: Callable[[TableName], float]) -> list[Turn]:
        """Whose rows are to come after each other: those of scalars before what they select, and
        smaller tables, by their `rows`, first, as they are what later rows look up."""
        turns = []
        for sources in self.compiled.turns():
            tables = dict.fromkeys(self.compiled.sources[at].table for at in sorted(sources))
            for table in sorted(tables, key=rows):
                own = (at for at in sources if self.compiled.sources[at].table == table)
                turns.append(Turn(table, frozenset(own)))
        return turns

    def counted_at(self, partition: RangePartition) -> int:
        """The position of the source whose rows are counted by range."""
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

    def fragments(self) -> Mapping[AccessId, FragmentSet]:
        """The sketch of every access as it stands."""
        members = self.merge.members
        return {
            access: FragmentSet.from_mask(members(at))
            for at, access in enumerate(self.compiled.accesses)
        }

    def unsure_rows(self) -> int:
        """How often a row was kept because its HAVING was too close to call."""
        return self.circuit.unsure_rows

    def refilled(self) -> tuple[int, int]:
        """Groups whose buffer was filled again so far, and the rows read for that."""
        refills = self.compiled.refills
        return sum(refill.groups for refill in refills), sum(refill.rows for refill in refills)

    def refills(self) -> Mapping[str, tuple[int, int, float]]:
        """By piece that was bounded by choice or wish: groups refilled so far, rows read for that,
        and milliseconds."""
        every = self.compiled.refills
        pieces = {one.piece for one in self.compiled.buffers if not one.pinned}
        result = (one for one in every if one.operator.piece in pieces)
        return {one.operator.piece: (one.groups, one.rows, one.ms) for one in result}

    def begun_anew(self) -> int:
        """How often the rows of a recursion were found anew so far, since most of them went."""
        every = (one for one in self.circuit if isinstance(one, Fixpoint))
        return sum(one.begun_anew for one in every)

    def tree_work(self) -> tuple[int, int, int]:
        """Tuples touched, flips and pairs of all its join trees so far."""
        result = self.circuit.counters() if self.compiled.shapes else {}
        touched, flips, pairs = (
            sum(number for name, number in result.items() if name.endswith(f".{what}"))
            for what in ("touched", "flips", "pairs")
        )
        return touched, flips, pairs

    def checkpoint(self) -> Checkpoint:
        """What changed since the last `saved`."""
        return checkpoint_of(self.keepers(), self.circuit.counters())

    def saved(self) -> None:
        """The last checkpoint is committed."""
        for keeper in self.keepers():
            keeper.saved()

    def state_bytes(self) -> int:
        """Bytes of keyed state held."""
        return sum(keeper.bytes_held for keeper in self.keepers())

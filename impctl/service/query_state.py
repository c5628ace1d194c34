"""The state of a stored query, restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from impctl.compile.session import MaintainedQuery, TouchedQuery
from impctl.data.pages import StoredTable
from impctl.service.maintenance_plan import JoinChooser, chooser_of, chosen_way, restored_verdict
from impctl.service.prepare import PreparedQuery, columns_assumed, prepare
from impctl.service.stored import StateMeta, ending_to_store, stored_moments
from impctl.sketch.sketch import FragmentSet, Mode
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.compile.compile import Way
    from impctl.compile.fill import RangeRows
    from impctl.safety.judge import Verdict
    from impctl.service.context import Workbench
    from impctl.sketch.partition import RangePartition
    from impctl.store.records import StoredQuery, TablePin
    from impctl.types import AccessId, ColumnName, TableName, TableVersion
    from impctl.workload.models import QuerySpec


@dataclass(frozen=True, slots=True)
class Reopened:
    """The query, why its sketch is safe, its partitions by access, and how its state is kept."""

    prepared: PreparedQuery
    verdict: Verdict
    partitions: Mapping[AccessId, RangePartition]
    meta: StateMeta
    chooser: JoinChooser
    way: Way


def reopened(desk: Workbench, spec: QuerySpec, stored: StoredQuery) -> Reopened:
    """The stored query as it reads now; RecaptureNeededError where it is no longer safe."""
    prepared = prepare(desk, spec, stored_moments(stored))
    verdict, partitions = restored_verdict(desk.tables, prepared, stored)
    meta = StateMeta.read(stored.query, stored.state_meta)
    chooser = chooser_of(prepared, meta)
    way = chosen_way(prepared, verdict, partitions, chooser, has_answer=meta.answer)
    return Reopened(prepared, verdict, partitions, meta, chooser, way)


StoredRuns = Mapping[str, Sequence[tuple[int, StoredTable]]]
"""The state as the store gives it: per arrangement its runs, ascending by sequence."""


class TakenUp:
    """A query whose sketches are kept exactly, or by touch where there is one table."""

    def __init__(
        self,
        way: Way,
        stored: StoredQuery,
        runs: StoredRuns,
        reads: Mapping[TableName, tuple[ColumnName, ...]] = MappingProxyType({}),
    ) -> None:
        """`way` is exact or touch, `runs` the state of the commit that `stored` is of.

        `reads` are all columns that the query reads of each table, as far as they are known.
        """
        self.reads = reads
        self.way = way
        self.stored = stored
        meta = StateMeta.read(stored.query, stored.state_meta)
        self.meta = replace(meta, ending=ending_to_store(way.lying_answer))
        self.fragments: Mapping[AccessId, FragmentSet] = {
            sketch.access: sketch.fragments for sketch in stored.sketches
        }
        self.session: MaintainedQuery | None = None
        """The circuit, in exact mode."""
        self.touched: TouchedQuery | None = None
        """The sketch and its counts, in touch mode."""
        if way.mode is Mode.EXACT:
            assert way.compiled is not None
            self.session = MaintainedQuery(way.compiled)
            self.session.restore(runs, self.meta.counters)
        else:
            (sketch,) = stored.sketches
            self.touched = TouchedQuery(sketch.partition, sketch.fragments)
            self.touched.restore(runs)

    @property
    def tables(self) -> tuple[TableName, ...]:
        """The tables the query reads."""
        return tuple(self.versions)

    @property
    def versions(self) -> Mapping[TableName, TableVersion]:
        """The versions the sketches stand at."""
        return self.stored.versions

    @property
    def state(self) -> MaintainedQuery | TouchedQuery:
        """What is stored beside the sketches."""
        state = self.touched if self.session is None else self.session
        assert state is not None
        return state

    @property
    def range_rows(self) -> RangeRows:
        """Rows per range of every partition."""
        return self.state.range_rows

    def pin(self, table: TableName) -> TablePin:
        """What a table of the query is pinned at."""
        return next(pin for pin in self.stored.pins if pin.table == table)

    def columns_of(self, table: TableName) -> tuple[ColumnName, ...]:
        """The columns that a change of this table has to be read with."""
        if self.session is not None:
            columns: Sequence[str] = self.session.compiled.columns_of(table)
        else:
            columns = (self.stored.sketches[0].attribute,)
        return tuple(dict.fromkeys((*columns, *columns_assumed(self.stored.assumptions, table))))

    def committed(
        self,
        generation: int,
        at: float,
        pins: tuple[TablePin, ...],
        fragments: Mapping[AccessId, FragmentSet],
        meta: StateMeta,
        stored_meta: dict[str, Any],
    ) -> None:
        """The state, as it is in memory, is what the store has now, with these beside it."""
        self.state.saved()
        self.fragments, self.meta = dict(fragments), meta
        sketches = tuple(
            replace(sketch, fragments=fragments[sketch.access]) for sketch in self.stored.sketches
        )
        self.stored = replace(
            self.stored,
            pins=pins,
            sketches=sketches,
            state_meta=stored_meta,
            generation=generation,
            maintained_at=at,
        )

"""Three ways to answer queries over a table that keeps changing, on one scratch copy each.

Law: every way answers at the newest versions and counts all it does for that, from finding the
newest version on. `none` reads the table; `recapture` holds sketches in memory and finds a stale
one anew by the fastest pass there is, without any state; `incremental` is what `impctl query` does:
stored sketches, maintained when stale. The last two reuse a sketch of other constants where
`reuse.verdict` allows it, and capture one where no sketch serves.
Out of scope: which operations come, comparing the answers (`mixed`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.bench.timing import milliseconds
from impctl.measure.scratch import AgainstRecapture
from impctl.service.answer import answer_table
from impctl.service.capture import capture_query
from impctl.service.capture_plan import choose_sketches
from impctl.service.context import Context
from impctl.service.fill import capture_sketches_alone
from impctl.service.filters import filters_of
from impctl.service.prepare import PreparedQuery, SketchedQuery, prepare
from impctl.service.resolve import ResolvedSketch, current_query, mapped, reused, verdict_of
from impctl.service.results import VerifyResult
from impctl.service.verify import verify
from impctl.sketch.sketch import RangeSet
from impctl.store.records import StoredSketch
from impctl.types import AccessId, TableName, TableVersion
from impctl.workload.models import QuerySpec

if TYPE_CHECKING:
    import pyarrow as pa


class Spent(Struct):
    """Milliseconds so far, by what they went into."""

    query_ms: float = 0.0
    maintain_ms: float = 0.0
    capture_ms: float = 0.0


class MixedStrategy(ABC):
    """A way to answer; `tables` are those the queries read."""

    def __init__(self, scratch: Context, tables: Sequence[TableName]) -> None:
        self.scratch = scratch
        self.tables = tuple(tables)
        self.spent = Spent()

    def answer(self, spec: QuerySpec) -> pa.Table:
        """The query's answer now."""
        tables: list[pa.Table] = []

        def work() -> None:
            for table in self.tables:
                self.scratch.tables.advance(table)
            tables.append(self._answered(spec))

        before = self.spent.maintain_ms + self.spent.capture_ms
        elapsed = milliseconds(work)
        self.spent.query_ms += elapsed - (self.spent.maintain_ms + self.spent.capture_ms - before)
        return tables[0]

    @abstractmethod
    def _answered(self, spec: QuerySpec) -> pa.Table: ...

    @property
    @abstractmethod
    def sketches(self) -> int:
        """Queries a sketch was captured for."""

    def checked(self) -> AgainstRecapture | None:
        """The sketches held against recapture; None without sketches that could be wrong."""
        return None

    @property
    def _versions(self) -> Mapping[TableName, TableVersion]:
        return self.scratch.tables.versions_of(self.tables)


class WithoutSketch(MixedStrategy):
    """Whole tables. The text is read once per query, since Spark alone needs none of that."""

    def __init__(self, scratch: Context, tables: Sequence[TableName]) -> None:
        super().__init__(scratch, tables)
        queries = scratch.workload.queries.values()
        self._prepared = {spec.name: prepare(scratch, spec) for spec in queries}

    def _answered(self, spec: QuerySpec) -> pa.Table:
        return answer_table(self.scratch, self._prepared[spec.name], self._versions)

    @property
    def sketches(self) -> int:
        return 0


class Incremental(MixedStrategy):
    """Stored sketches, maintained when a query wants one that is stale."""

    def _answered(self, spec: QuerySpec) -> pa.Table:
        freshes: list[ResolvedSketch] = []
        self.spent.maintain_ms += milliseconds(
            lambda: freshes.append(reused(self.scratch, spec, None))
        )
        if not freshes[0].sketches:
            self.spent.capture_ms += milliseconds(lambda: self._capture(spec))
            freshes = [current_query(self.scratch, spec.name)]
        current = freshes[0]
        pruned = filters_of(
            self.scratch.tables, current.prepared, current.sketches, current.versions
        )
        return answer_table(self.scratch, current.prepared, current.versions, pruned)

    def _capture(self, spec: QuerySpec) -> None:
        with self.scratch.writing("bench") as store:
            prepared = prepare(self.scratch, spec)
            capture_query(self.scratch, store, prepared, code="asked", reason="bench")

    @property
    def sketches(self) -> int:
        return len(self.scratch.store().queries())

    def checked(self) -> AgainstRecapture | None:
        names = self.scratch.store().queries()
        for name in names:
            current_query(self.scratch, name)
        outcome = verify(self.scratch, names)
        if outcome.failures:
            raise outcome.failures[0].error
        match = [result for result in outcome.results if isinstance(result, VerifyResult)]
        return AgainstRecapture(all(r.covers for r in match), sum(r.slack for r in match))


class _Held(Struct):
    """A sketch in memory and what finding it again needs; `versions` are those it stands at."""

    prepared: PreparedQuery
    query: SketchedQuery
    ranges: Mapping[AccessId, RangeSet] = field(default_factory=dict)
    versions: Mapping[TableName, TableVersion] = field(default_factory=dict)

    @property
    def sketches(self) -> tuple[StoredSketch, ...]:
        table_of = self.prepared.table_of
        return tuple(
            StoredSketch(access, table_of[access], part.attribute, part, self.ranges[access])
            for access, part in self.query.partitions.items()
        )

    @property
    def size(self) -> int:
        return sum(len(ranges) for ranges in self.ranges.values())


class Recapture(MixedStrategy):
    """Sketches in memory, found anew in Spark when a query wants one that is stale."""

    def __init__(self, scratch: Context, tables: Sequence[TableName]) -> None:
        super().__init__(scratch, tables)
        self._stored: list[_Held] = []

    @property
    def sketches(self) -> int:
        return len(self._stored)

    def _answered(self, spec: QuerySpec) -> pa.Table:
        prepared = prepare(self.scratch, spec)
        sketches = self._reused(prepared)
        if sketches is None:
            sketches = self._captured(prepared).sketches
        versions = self._versions
        pruned = filters_of(self.scratch.tables, prepared, sketches, versions)
        return answer_table(self.scratch, prepared, versions, pruned)

    def _reused(self, prepared: PreparedQuery) -> tuple[StoredSketch, ...] | None:
        """The smallest sketch that serves, found anew where it is stale."""
        for stored in sorted(self._stored, key=lambda stored: stored.size):
            # Without assumptions of its capture, which nobody looks at again: what holds now does.
            verdict = verdict_of(self.scratch, prepared, stored.prepared, stored.sketches, ())
            if verdict.allowed:
                if stored.versions != self._versions:
                    self._recapture(stored)
                return mapped(stored.sketches, verdict)
        return None

    def _captured(self, prepared: PreparedQuery) -> _Held:
        stored = _Held(prepared, choose_sketches(self.scratch, prepared))
        self._recapture(stored)
        self._stored.append(stored)
        return stored

    def _recapture(self, stored: _Held) -> None:
        def work() -> None:
            stored.ranges = capture_sketches_alone(self.scratch, stored.query, self._versions)

        self.spent.capture_ms += milliseconds(work)
        stored.versions = dict(self._versions)


def held_specs(spec: QuerySpec, variants: Sequence[QuerySpec]) -> dict[str, QuerySpec]:
    """The queries of a mixed workload by name: one per choice of constants, told by a number."""
    named = [replace(each, name=f"{spec.name}-{index}") for index, each in enumerate(variants)]
    return {each.name: each for each in named}

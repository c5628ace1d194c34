"""A query on a scratch copy, captured, to be changed and maintained under a stopwatch.

Law: maintaining counts from following the log to the durable commit, in a process that is up
(`measure.follower` says what is not in it); writing the change itself does not. Changes are
insertions of rows like the table's own, and their deletion by going back, so that the table does
not grow.
Out of scope: what is repeated and compared (`measure`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from impctl.errors import RecaptureNeededError
from impctl.measure.changed_table import changed_table
from impctl.measure.drawn_rows import drawn_rows
from impctl.measure.follower import AgainstRecapture, Followed, captured
from impctl.measure.settled import settle
from impctl.service.fill import filled_circuit
from impctl.service.filters import Pruned, filters_of
from impctl.service.maintenance_plan import chooser_for, chosen_way
from impctl.service.prepare import PreparedQuery, prepare
from impctl.service.resolve import Weighed, WrittenQuery, weighed, written_query
from impctl.service.scratch import scratch_copy
from impctl.service.spark_answer import answer_table
from impctl.tables.write.maintenance import append_rows, rewind

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.safety.judge import Verdict
    from impctl.service.context import Workbench
    from impctl.sketch.partition import RangePartition
    from impctl.sketch.sketch import FragmentSet
    from impctl.store.records import StoredQuery
    from impctl.types import AccessId, TableName
    from impctl.workload.models import QuerySpec


class MeasuredQuery:
    """One query on its scratch copy; maintain only while the copy's store is locked (`writing`)."""

    def __init__(self, scratch: Workbench, spec: QuerySpec) -> None:
        self.scratch = scratch
        self.follower = captured(scratch, spec)
        self.table: TableName = changed_table(scratch.tables, self.prepared.tables)

    @property
    def prepared(self) -> PreparedQuery:
        """The query, read over the copies."""
        return self.follower.prepared

    @property
    def stored(self) -> StoredQuery:
        """What the copy's store holds of the query now."""
        return self.follower.stored

    @property
    def verdict(self) -> Verdict:
        """Why its sketches are safe."""
        return self.follower.verdict

    @property
    def partitions(self) -> Mapping[AccessId, RangePartition]:
        """The ranges of the sketch of each access."""
        return self.follower.partitions

    @property
    def has_state(self) -> bool:
        """Whether a capture fills operator state too."""
        return self.follower.has_state

    def maintain(self, rows: pa.Table, *, forth: bool) -> Followed:
        """Commit the change, then maintain: read, engine and commit."""
        self.commit(rows, forth=forth)
        return self.followed(len(rows))

    def followed(self, wanted: int) -> Followed:
        """Maintain what was committed: so many changed rows, else RecaptureNeededError."""
        step = self.follower.follow()
        changes = 0 if step is None else step.done.changes
        if step is None or changes != wanted:
            raise RecaptureNeededError(
                f"The clone of `{self.table}` has {changes} changes instead of {wanted}",
                code="bench_disturbed",
                hint="run `impctl bench` again",
            )
        return step

    def commit(self, rows: pa.Table, *, forth: bool) -> None:
        """Insert the rows, or take the last commit back; nothing is maintained."""
        source = self.scratch.tables.source(self.table)
        if forth:
            append_rows(source.path, rows)
        else:
            rewind(source.path, source.version - 1)
        settle(self.scratch.tables, self.table, source.version)

    def checked(self) -> AgainstRecapture:
        """The sketches as they stand against recapture."""
        return self.follower.checked()

    def checked_both_ways(self, rows: pa.Table) -> tuple[AgainstRecapture, AgainstRecapture]:
        """The sketches against recapture with this change, and after it was taken back."""
        self.maintain(rows, forth=True)
        inserted = self.checked()
        self.maintain(rows, forth=False)
        return inserted, self.follower.checked(self.unchanged)

    @cached_property
    def unchanged(self) -> Mapping[AccessId, FragmentSet]:
        """The accurate sketches without any change: taking one back gives the same rows again."""
        return self.recapture()

    def recapture(self) -> Mapping[AccessId, FragmentSet]:
        """The accurate sketches at the table's version, by Spark; nothing is stored."""
        return self.follower.recapture()

    def capture(self) -> None:
        """Sketch and state in one pass, without storing them."""
        chooser = chooser_for(self.scratch, self.prepared)
        way = chosen_way(self.prepared, self.verdict, self.partitions, chooser)
        filled_circuit(self.scratch, self.prepared, way, self.verdict, self.partitions)

    def pruned(self) -> Pruned:
        """What the captured sketches leave to read."""
        stored = self.stored
        return filters_of(self.scratch.tables, self.prepared, stored.sketches, stored.versions)

    def weighed(self) -> Weighed:
        """What `query` reads through them where that pays, and what it reads without."""
        stored = self.stored
        return weighed(self.scratch.tables, self.prepared, stored.sketches, stored.versions)

    def unsketched(self) -> Pruned:
        """What the query's own conditions leave to read, without any sketch."""
        return filters_of(self.scratch.tables, self.prepared, (), self.stored.versions)

    def written(self) -> WrittenQuery:
        """The text that `rewrite` prints, and the files that it reads."""
        tables, stored, prepared = self.scratch.tables, self.stored, self.prepared
        query, sketches = prepared.query, stored.sketches
        return written_query(tables, prepared, query, sketches, stored.versions, has_files=True)

    def answer(self, pruned: Pruned | None = None) -> pa.Table:
        """The query's result at the captured versions, read through `pruned` where given."""
        return answer_table(self.scratch, self.prepared, self.stored.versions, pruned)

    def rows_like_the_table(self, size: int, seed: int) -> pa.Table:
        """So many rows drawn from all over the table, file by file."""
        return drawn_rows(
            self.scratch.tables.snapshot(self.table), size, np.random.default_rng(seed + size)
        )


@contextmanager
def measured_copy(desk: Workbench, spec: QuerySpec) -> Iterator[MeasuredQuery]:
    """The query captured on a scratch copy of its tables, all of it removed at the end."""
    with scratch_copy(desk, prepare(desk, spec).tables) as scratch:
        yield MeasuredQuery(scratch, spec)

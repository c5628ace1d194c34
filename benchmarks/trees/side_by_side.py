"""A stream of changes followed by all ways at once: the tree, the index join, DuckDB asked anew.

Law: all have the same rows before and after every step, and their sketches can be compared at any
time; where nobody else has them, with those of a tree that is filled anew, which the notes say.
What is not run is noted with the joined rows that it would take, never left out silently.
Out of scope: what is timed and told of it (`measures.tree_cost`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import reduce

import pyarrow as pa
from msgspec import Struct, field
from sqlglot.errors import SqlglotError

from benchmarks.trees.joined_rows import MOST, joined_rows
from benchmarks.trees.semi_joins import NoSemiJoinsError, SketchQuestion, put_rows, sketch_question
from benchmarks.trees.streams import Step, Stream
from benchmarks.trees.ways import Choices, Followed
from impctl.bench.timing import milliseconds
from impctl.errors import JoinTooLargeError, UnsupportedError
from impctl.measure.duckdb import ParquetSql, SqlFailed
from impctl.measure.scratch import AgainstRecapture, worse_of
from impctl.plan.nodes import Plan
from impctl.sketch.sketch import RangeSet, compare
from impctl.types import AccessId, TableName
from impctl.workload.models import JoinStrategy

TREE_MS, INDEX_MS = "tree_ms", "index_ms"
ALONE = "compared with a separately filled tree"

Sketches = Mapping[AccessId, RangeSet]


class Bounds(Struct, frozen=True):
    """Joined rows beyond which the index join is not run, and DuckDB not asked for groups."""

    joined: int
    asked: int


class SideBySide(Struct):
    """The ways that follow one stream, and what is said of those that do not."""

    stream: Stream
    choices: Choices
    tree: Followed
    joined: int | None
    """What an index join writes down of the rows at first; None where nobody can tell."""
    now: dict[TableName, pa.Table]
    index: Followed | None = None
    notes: list[str] = field(default_factory=list)
    connection: ParquetSql | None = None
    question: SketchQuestion | None = None

    @classmethod
    def opened(
        cls, choices: Choices, stream: Stream, bounds: Bounds, tell: Callable[[str], None]
    ) -> SideBySide:
        """All circuits filled, DuckDB connected where it is installed; `tell` hears what is done.

        UnsupportedError for a query that has no tree.
        """
        name = choices.prepared.spec.name
        way = choices.way(JoinStrategy.TREE)
        if not way.has_tree:
            raise _nothing_joined(choices)
        assert way.core is not None
        assert way.compiled is not None
        tell(f"filling the tree of {name}")
        tree = Followed(way.compiled, stream.start)
        joined = joined_rows(way.core, choices.partitions, stream.start)
        result = cls(stream, choices, tree, joined, dict(stream.start))
        if joined is None or joined <= bounds.joined:
            tell(f"filling the index join of {name}")
            result._fill_index()
        else:
            result.notes.append(f"index join not run: {_count(joined)} joined rows")
        result._ask_duckdb(way.core, bounds)
        return result

    def _fill_index(self) -> None:
        compiled = self.choices.way(JoinStrategy.INDEX).compiled
        assert compiled is not None
        try:
            self.index = Followed(compiled, self.stream.start)
        except JoinTooLargeError as error:
            self.notes.append(f"index join not run: {error.message}")

    def _ask_duckdb(self, core: Plan, bounds: Bounds) -> None:
        """DuckDB beside, where it is there and has an answer in bounded time."""
        try:
            question = sketch_question(core, self.choices.partitions)
        except (NoSemiJoinsError, SqlglotError) as error:
            self.notes.append(f"not run in DuckDB: {error}")
            return
        joined = self.joined or 0
        if question.has_groups and joined > bounds.asked:
            self.notes.append(f"not run in DuckDB: groups of {_count(joined)} joined rows")
            return
        self.question, self.connection = question, ParquetSql.open()
        if self.connection is None:
            self.notes.append("DuckDB is not installed")

    def step(self) -> tuple[Step, dict[str, float]]:
        """The stream's next step, and each way's milliseconds for it."""
        step = next(self.stream.steps)
        times = {TREE_MS: self.tree.step(step)}
        if self.index is not None:
            try:
                times[INDEX_MS] = self.index.step(step)
            except JoinTooLargeError as error:
                # What it holds now is of no step.
                self.index = None
                self.notes.append(f"index join stopped: {error.message}")
        self.now |= step.after
        return step, times

    def checked(self) -> AgainstRecapture:
        """The tree's sketches against those of all others."""
        others = [] if self.index is None else [self.index.ranges()]
        if (recomputed := self._anew()) is not None:
            others.append(recomputed)
        if not others:
            # A circuit holds its state, so it takes another one.
            compiled = self.choices.way(JoinStrategy.TREE).compiled
            assert compiled is not None
            others.append(Followed(compiled, self.now).ranges())
            if ALONE not in self.notes:
                self.notes.append(ALONE)
        stored = self.tree.ranges()
        return reduce(worse_of, [_compared(stored, other) for other in others])

    def _anew(self) -> Sketches | None:
        if self.connection is None or self.question is None:
            return None
        try:
            put_rows(self.connection, self.now)
            return self.question.asked(self.connection)
        except SqlFailed as error:
            self.notes.append(f"DuckDB cannot run the query: {error}")
            self.question = None
            return None

    def asked_anew(self, times: int) -> list[float]:
        """Milliseconds of DuckDB for the rows as they were last compared.

        The lesser of wall time on all cores and processor time, whichever favours it: who else uses
        the machine makes the first one long.
        """
        connection, question = self.connection, self.question
        if connection is None or question is None:
            return []
        result = []
        for _ in range(times):
            began = time.process_time()
            wall_ms = milliseconds(lambda: question.asked(connection))
            result.append(min(wall_ms, (time.process_time() - began) * 1000.0))
        return result

    def close(self) -> None:
        """Let go of DuckDB."""
        if self.connection is not None:
            self.connection.close()


def _compared(stored: Sketches, accurate: Sketches) -> AgainstRecapture:
    relations = [compare(ranges, accurate[access]) for access, ranges in stored.items()]
    return AgainstRecapture(all(r.covers for r in relations), sum(r.slack for r in relations))


def _nothing_joined(choices: Choices) -> UnsupportedError:
    return UnsupportedError(
        f"Query `{choices.prepared.spec.name}` has no join, so it has no tree to measure",
        code="no_join_tree",
        hint="measure it with `maintain`",
        location=choices.prepared.spec.location,
    )


def _count(rows: int) -> str:
    return "more than 4 * 10^18" if rows >= MOST else f"{rows:,}"

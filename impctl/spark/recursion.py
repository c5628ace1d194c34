"""Recursive queries and their sketches, derived in Spark round by round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.data.schema import LONG
from impctl.engine.operator import Limits, level_limits
from impctl.errors import QueryError
from impctl.plan.lineage import is_sketched_for_answer
from impctl.plan.nodes import BestOnly, Fixpoint, Plan, Query
from impctl.plan.recursion import (
    base_and_step,
    column_names,
    is_linear,
    keyed_rows,
    leaves_of,
    of_rows,
    outer_fixpoints,
    reads_fixpoint,
    step_over_table,
    table_of,
    with_fixpoint_tables,
)
from impctl.safety.judge import Verdict, carried_verdict, states_of
from impctl.safety.transfer import facts_of_rows
from impctl.sketch.sketch import RangePartition, RangeSet
from impctl.spark.render import render_plan
from impctl.spark.run import plain_failures, selected
from impctl.spark.sketches import capture_sketches, with_range_id
from impctl.types import AccessId, TableName, TableVersion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Rows of recursive queries, derived in Spark round by round: the least fixpoint, each row once;
# with UNION ALL, every derivation counts. A fixpoint that keeps the best of each group ends when no
# round has better rows. It shares only the limits with the engine. Each round is a join of about a
# second, so it serves verification and what the engine cannot do; each round is reported before it
# begins.

Frames = Mapping[AccessId, "DataFrame"]

Tell = Callable[[str], None]
"""Is called with each step that begins, as one short line."""


_ROUND = "round {:,} of {}, rows so far: {:,}, new: {:,}"


class Rounds(Struct, frozen=True):
    """The recursive queries of one plan, each derived once. All methods run inside
    `plain_failures`; UnsupportedError (`recursion_limit`) beyond limits. `frames` are always the
    rows of a plan's own accesses. Counting rows for `tell` costs no extra job."""

    spark: SparkSession
    limits: Limits
    tell: Tell
    known: dict[AccessId, DataFrame] = field(default_factory=dict)

    def frames_over(self, plan: Plan, frames: Frames) -> Frames:
        """The rows of all accesses, with tables for fixpoints (`with_fixpoint_tables`)."""
        result = dict(frames)
        for fixpoint in outer_fixpoints(plan):
            result[table_of(fixpoint).access] = self.rows(fixpoint, frames)
        return result

    def rows(self, fixpoint: Fixpoint, frames: Frames) -> DataFrame:
        access = table_of(fixpoint).access
        if access not in self.known:
            self.known[access] = self._derived(fixpoint, frames)
        return self.known[access]

    def _derived(self, fixpoint: Fixpoint, frames: Frames) -> DataFrame:
        for inner in outer_fixpoints(fixpoint.step):
            if reads_fixpoint(inner, fixpoint.id):
                raise QueryError(
                    "In Spark, a WITH entry that reads itself cannot be inside another one",
                    code="capture_unsupported",
                    hint="derive the rows of both in one entry, with a column that distinguishes "
                    "them",
                )
        names, step = column_names(fixpoint), step_over_table(fixpoint)
        leaves = [table_of(leaf).access for leaf in leaves_of(fixpoint)]
        of_step = self.frames_over(step, frames)
        in_base = self.frames_over(fixpoint.base, frames)
        self.tell(f"initial rows of {fixpoint.id}")
        front = self._of(fixpoint.base, in_base).toDF(*names)
        front = (front.distinct() if fixpoint.is_set else front).localCheckpoint()
        if fixpoint.best is not None:
            return self._best(fixpoint, fixpoint.best, front, of_step)
        limits = self.limits if fixpoint.is_set else level_limits(fixpoint.levels)
        every, rounds, count, more = front, 0, 0, front.count()
        while more:
            rounds, count = rounds + 1, count + more
            limits.check(rounds, count)
            self.tell(_ROUND.format(rounds, fixpoint.id, count, more))
            # With two references a row of this round may meet one of any round before.
            read = front if is_linear(fixpoint) else every
            front = self._of(step, {**of_step, **dict.fromkeys(leaves, read)}).toDF(*names)
            front = (front.subtract(every) if fixpoint.is_set else front).localCheckpoint()
            more = front.count()
            if more:
                every = every.unionAll(front)
                # With UNION ALL no round reads them all.
                every = every.localCheckpoint() if fixpoint.is_set else every
        return every

    def _best(
        self, fixpoint: Fixpoint, best: BestOnly, front: DataFrame, of_step: Frames
    ) -> DataFrame:
        """The best rows, from those of the base; every round improves some or ends it."""
        names, step = column_names(fixpoint), step_over_table(fixpoint)
        leaves = [table_of(leaf).access for leaf in leaves_of(fixpoint)]
        every = front = _best_of(front, best, names).localCheckpoint()
        rounds = 0
        while more := front.count():
            rounds, count = rounds + 1, every.count()
            self.limits.check(rounds, count)
            self.tell(_ROUND.format(rounds, fixpoint.id, count, more))
            result = self._of(step, {**of_step, **dict.fromkeys(leaves, front)}).toDF(*names)
            better = _best_of(every.unionAll(result).distinct(), best, names).localCheckpoint()
            front, every = better.subtract(every).localCheckpoint(), better
        return every

    def _of(self, plan: Plan, frames: Frames) -> DataFrame:
        plan = with_fixpoint_tables(plan)
        views = {scan.access: f"impctl_view{index}" for index, scan in enumerate(plan.scans)}
        read = {name: frames[access] for access, name in views.items()}
        return selected(self.spark, render_plan(plan, views), read)


def _best_of(rows: DataFrame, best: BestOnly, names: Sequence[str]) -> DataFrame:
    """Of distinct rows those that are best of their group."""
    from pyspark.sql import Window
    from pyspark.sql.functions import col, lit, rank

    is_best, by = lit(False), Window.partitionBy(*(names[position] for position in best.keys))
    for index, value in enumerate(best.values):
        column = col(names[value.place])
        order = column.desc_nulls_last() if value.greatest else column.asc_nulls_last()
        rows = rows.withColumn(f"rank{index}", rank().over(by.orderBy(order)))
        is_best = is_best | (col(f"rank{index}") == 1)
        is_best = is_best | column.isNull() if best.keeps_null else is_best
    return rows.where(is_best).select(*names)


# Sketches of recursive queries, captured in Spark. All rows of a fixpoint count, used above or not.
# Over a table with these rows, the base, the step and the query above are captured as separate
# queries; an access's sketch is the union of theirs. It covers all derivations, also if one of each
# row would do: a sketch of one derivation each is checked by deriving the rows over it. If the
# fixpoint is keyed, only the query above counts: the sketch of the table with its rows, on the key
# column, is that of every access below. For the lineage of the answer alone, rows of that table
# have numbers: those that the query above needs are followed back through the step, a join per
# round, and only what derives such rows counts.

_RANGE_ID, _NUMBER = "impctl_fragment", "impctl_number"


def capture_recursive(
    spark: SparkSession,
    query: Query,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    frames: Frames,
    *,
    versions: Mapping[TableName, TableVersion] | None = None,
    limits: Limits,
    tell: Tell,
) -> dict[AccessId, RangeSet]:
    """As `capture_sketches`, for any query; UnsupportedError beyond the limits."""
    keyed = {table.access: table for table in _keyed_tables(query.root, verdict, partitions)}
    # What is known about the rows of fixpoints that are tables.
    states = states_of(verdict, query, {a: p.attribute for a, p in partitions.items()})
    facts = [
        fact
        for node, state in zip(query.root.walk(), states, strict=True)
        if isinstance(node, Fixpoint)
        for fact in facts_of_rows(node, state)
    ]
    verdict = replace(verdict, facts=(*verdict.facts, *facts))
    # What a keyed fixpoint's rows need, its accesses do, and they alone are sketched below it.
    every = {**partitions, **{access: table.partition for access, table in keyed.items()}}
    run = _RecursiveCapture(
        Rounds(spark, limits, tell), query, verdict, every, versions or {}, keyed
    )
    run.capture(query.root, frames)
    result = run.found
    for access, table in keyed.items():
        for represented in table.stands_for:
            result[represented] |= result[access]
    return {a: RangeSet.of(result[a], p.size) for a, p in partitions.items()}


class _RecursiveCapture(Struct, frozen=True):
    """The results so far for `partitions`, those of tables that represent fixpoints included."""

    rounds: Rounds
    query: Query
    verdict: Verdict
    partitions: dict[AccessId, RangePartition]
    versions: Mapping[TableName, TableVersion]
    keyed: Collection[AccessId]
    found: dict[AccessId, set[int]] = field(default_factory=lambda: defaultdict(set))

    def capture(self, plan: Plan, frames: Frames, part: str = "the query") -> None:
        """The plan (`part` names it) and what derives its fixpoints; `frames` are of its
        accesses."""
        open_ones = [
            fixpoint
            for fixpoint in outer_fixpoints(plan)
            # How its rows are used decides what is sketched below.
            if is_sketched_for_answer(fixpoint)
            and any(scan.access in self.partitions for scan in fixpoint.scans)
            and table_of(fixpoint).access not in self.keyed
        ]
        with plain_failures(self.versions):
            rows = dict(self.rounds.frames_over(plan, frames))
            for fixpoint in open_ones:
                access = table_of(fixpoint).access
                rows[access], self.partitions[access] = _numbered(rows[access], fixpoint)
        self.rounds.tell(f"ranges for {part}")
        captured = self._captured(with_fixpoint_tables(plan), rows, self.partitions)
        for access, ranges in captured.items():
            self.found[access].update(ranges)
        for fixpoint in outer_fixpoints(plan):
            fixpoint_access, leaves = _accesses(fixpoint)
            if fixpoint_access in self.keyed:
                continue
            known = {**frames, **dict.fromkeys((fixpoint_access, *leaves), rows[fixpoint_access])}
            parts = base_and_step(fixpoint)
            if fixpoint in open_ones:
                known[fixpoint_access] = self._taking_part(fixpoint, known)
                parts = of_rows(parts[0], fixpoint), of_rows(parts[1], fixpoint)
            for part_name, plan_of_part in zip(("base", "step"), parts, strict=True):
                self.capture(plan_of_part, known, f"the {part_name} of {fixpoint.id}")

    def _taking_part(self, fixpoint: Fixpoint, frames: Frames) -> DataFrame:
        """The rows that those used are derived from, with these: backwards, step by step."""
        fixpoint_access, leaves = _accesses(fixpoint)
        # From here on it only tells which rows count.
        ranges = self.partitions.pop(fixpoint_access)
        step = of_rows(step_over_table(fixpoint), fixpoint)
        numbers = dict.fromkeys(leaves, ranges)
        front = taking_part = frozenset(self.found[fixpoint_access])
        rounds = 0
        while front:
            rounds += 1
            self.rounds.tell(
                f"round {rounds:,} back through {fixpoint.id}, rows so far: {len(taking_part):,}, "
                f"new: {len(front):,}"
            )
            heads = _within(frames[fixpoint_access], ranges, RangeSet.of(front, ranges.size))
            with plain_failures(self.versions):
                rows = self.rounds.frames_over(step, {**frames, fixpoint_access: heads})
            bodies = self._captured(with_fixpoint_tables(step), rows, numbers)
            front = frozenset().union(*bodies.values()) - taking_part
            taking_part |= front
        return _within(frames[fixpoint_access], ranges, RangeSet.of(taking_part, ranges.size))

    def _captured(
        self, plan: Plan, frames: Frames, partitions: Mapping[AccessId, RangePartition]
    ) -> Mapping[AccessId, RangeSet]:
        """What the rows of a plan without fixpoints need of its accesses."""
        sketched = {s.access: partitions[s.access] for s in plan.scans if s.access in partitions}
        if not sketched:
            return {}
        part = replace(self.query, root=plan)
        judged = carried_verdict(self.verdict, part, {a: p.attribute for a, p in sketched.items()})
        spark = self.rounds.spark
        return capture_sketches(spark, part, judged, sketched, frames, versions=self.versions)


def _accesses(fixpoint: Fixpoint) -> tuple[AccessId, list[AccessId]]:
    return table_of(fixpoint).access, [table_of(leaf).access for leaf in leaves_of(fixpoint)]


def _numbered(rows: DataFrame, fixpoint: Fixpoint) -> tuple[DataFrame, RangePartition]:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    number = F.row_number().over(Window.orderBy(*column_names(fixpoint))) - 1
    numbered = rows.withColumn(_NUMBER, number.cast("bigint")).localCheckpoint()
    boundaries = tuple(range(1, numbered.count()))
    return numbered, RangePartition(table_of(fixpoint).table, _NUMBER, LONG, boundaries)


class _KeyedTable(Struct, frozen=True):
    """The table of a keyed fixpoint's rows: its accesses, and their ranges."""

    access: AccessId
    stands_for: tuple[AccessId, ...]
    partition: RangePartition


def _keyed_tables(
    root: Plan, verdict: Verdict, partitions: Mapping[AccessId, RangePartition]
) -> Iterator[_KeyedTable]:
    keyed = keyed_rows(root, verdict.key_columns)
    for node in root.walk():
        if not isinstance(node, Fixpoint):
            continue
        table = table_of(node)
        for attribute in table.attributes:
            if attribute.id in keyed:
                accesses = keyed[attribute.id]
                partition = partitions[accesses[0]]
                assert {partitions[access].id for access in accesses} == {partition.id}
                ranges = replace(partition, table=table.table, attribute=attribute.name)
                yield _KeyedTable(table.access, accesses, ranges)


def derives_all(
    spark: SparkSession,
    fixpoint: Fixpoint,
    partitions: Mapping[AccessId, RangePartition],
    ranges: Mapping[AccessId, RangeSet],
    frames: Frames,
    *,
    versions: Mapping[TableName, TableVersion] | None = None,
    limits: Limits,
    tell: Tell,
) -> bool:
    """Whether the fixpoint has all its rows over the `ranges` alone. `frames` have the
    columns of the partitions."""
    with plain_failures(versions):
        some = {
            access: _within(frame, partitions[access], ranges[access])
            if access in ranges
            else frame
            for access, frame in frames.items()
        }
        over = Rounds(spark, limits, lambda line: tell(f"{line} (over the sketch)"))
        over_all = Rounds(spark, limits, lambda line: tell(f"{line} (over the tables)"))
        result, every = over.rows(fixpoint, some), over_all.rows(fixpoint, frames)
        apart = result.exceptAll(every).unionAll(every.exceptAll(result))
        return not apart.take(1)


def _within(frame: DataFrame, partition: RangePartition, ranges: RangeSet) -> DataFrame:
    from pyspark.sql import functions as F

    tagged = with_range_id(frame, partition, partition.attribute, _RANGE_ID)
    rows = [(number,) for number in ranges.ids]
    ids = frame.sparkSession.createDataFrame(rows, f"{_RANGE_ID} int")
    return tagged.join(F.broadcast(ids), _RANGE_ID, "left_semi").drop(_RANGE_ID)

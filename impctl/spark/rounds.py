"""Rows of recursive queries, derived in Spark round by round.

Law: the rows are those of the least fixpoint, each once; of UNION ALL every derivation counts. Of a
fixpoint that keeps the best of each group, rows go on as long as no round has better ones. It
shares nothing with the engine but the limits. A round is a join in Spark and takes a second or so,
however few its rows: this is for verifying, and for what the engine cannot do. As that may take
minutes, each round is told of before it begins.
Out of scope: what is sketched of such a query (`spark.recursive_sketches`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from impctl.capture.render import render_plan
from impctl.engine.operator import LIMITS, Limits, level_limits
from impctl.errors import QueryError
from impctl.plan.nodes import BestOnly, Fixpoint, Plan, scans_of
from impctl.plan.recursion import (
    column_names,
    is_linear,
    leaves_of,
    outer_fixpoints,
    over_tables,
    reads_fixpoint,
    step_over_table,
    table_of,
)
from impctl.spark.run import selected
from impctl.types import AccessId
from impctl.values import dataclass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Frames = Mapping[AccessId, "DataFrame"]

Tell = Callable[[str], None]
"""Is told what begins now, as one short line."""


def tell_nobody(line: str) -> None:
    """Nothing."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """The recursive queries of one plan, each derived once.

    All methods stand inside `plain_failures`; UnsupportedError (`recursion_limit`) beyond limits.
    `frames` are always the rows of a plan's own accesses. Counting rows for `tell` costs no job of
    its own.
    """

    spark: SparkSession
    limits: Limits = LIMITS
    tell: Tell = tell_nobody
    known: dict[AccessId, DataFrame] = field(default_factory=dict)

    def frames_over(self, plan: Plan, frames: Frames) -> Frames:
        """The rows of all accesses of the plan with tables for fixpoints (`over_tables`)."""
        result = dict(frames)
        for fixpoint in outer_fixpoints(plan):
            result[table_of(fixpoint).access] = self.rows(fixpoint, frames)
        return result

    def rows(self, fixpoint: Fixpoint, frames: Frames) -> DataFrame:
        """The rows of a fixpoint, in columns called by their places."""
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
            self._tell_round(fixpoint, rounds, count, more)
            # With two references a row of this round may meet one of any round before.
            read = front if is_linear(fixpoint) else every
            front = self._of(step, {**of_step, **dict.fromkeys(leaves, read)}).toDF(*names)
            front = (front.subtract(every) if fixpoint.is_set else front).localCheckpoint()
            more = front.count()
            if more:
                every = every.unionAll(front)
                # Of UNION ALL nobody reads them all in a round.
                every = every.localCheckpoint() if fixpoint.is_set else every
        return every

    def _best(
        self, fixpoint: Fixpoint, best: BestOnly, front: DataFrame, of_step: Frames
    ) -> DataFrame:
        """The best rows, from those of the base; every round beats some or ends it."""
        names, step = column_names(fixpoint), step_over_table(fixpoint)
        leaves = [table_of(leaf).access for leaf in leaves_of(fixpoint)]
        every = front = _best_of(front, best, names).localCheckpoint()
        rounds = 0
        while more := front.count():
            rounds, count = rounds + 1, every.count()
            self.limits.check(rounds, count)
            self._tell_round(fixpoint, rounds, count, more)
            result = self._of(step, {**of_step, **dict.fromkeys(leaves, front)}).toDF(*names)
            better = _best_of(every.unionAll(result).distinct(), best, names).localCheckpoint()
            front, every = better.subtract(every).localCheckpoint(), better
        return every

    def _tell_round(self, fixpoint: Fixpoint, number: int, rows: int, new: int) -> None:
        """What a round begins with: rows so far, and those of them that it goes on from."""
        self.tell(f"round {number:,} of {fixpoint.id}, rows so far: {rows:,}, new: {new:,}")

    def _of(self, plan: Plan, frames: Frames) -> DataFrame:
        """The rows of a plan over those of its accesses."""
        plan = over_tables(plan)
        views = {scan.access: f"impctl_view{place}" for place, scan in enumerate(scans_of(plan))}
        read = {name: frames[access] for access, name in views.items()}
        return selected(self.spark, render_plan(plan, views).sql, read)


def _best_of(rows: DataFrame, best: BestOnly, names: Sequence[str]) -> DataFrame:
    """Of rows that are there once those that are best of their group."""
    from pyspark.sql import Window
    from pyspark.sql.functions import col, lit, rank

    kept, by = lit(False), Window.partitionBy(*(names[place] for place in best.keys))
    for at, value in enumerate(best.values):
        column = col(names[value.place])
        order = column.desc_nulls_last() if value.greatest else column.asc_nulls_last()
        rows = rows.withColumn(f"rank{at}", rank().over(by.orderBy(order)))
        kept = kept | (col(f"rank{at}") == 1)
        kept = kept | column.isNull() if best.keeps_null else kept
    return rows.where(kept).select(*names)

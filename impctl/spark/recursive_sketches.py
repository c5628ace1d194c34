"""Sketches of recursive queries, captured in Spark.

Law: all rows of a fixpoint count, used above or not: its sketches hold whatever takes part in
deriving them. Over a table with these rows, the base, the step and the query above are queries of
their own, each captured as any other; what they need of an access together is its sketch. That is
of all derivations, also where one of each row would do: which one a sketch holds is its own choice,
so whether it holds one is told by deriving the rows over it.
Out of scope: the rows (`spark.rounds`), one such capture (`spark.sketches`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.aliases import AccessId, TableName, TableVersion
from impctl.engine.fixpoint.limits import LIMITS, Limits
from impctl.plan.fixpoint_tables import (
    leaves_of,
    outer_fixpoints,
    over_tables,
    step_over_table,
    table_of,
)
from impctl.plan.nodes import Fixpoint, Plan, Query, scans_of
from impctl.plan.safety.verdict import Verdict, carried
from impctl.sketch.fragments import FragmentSet
from impctl.sketch.partition import RangePartition
from impctl.spark.failures import plain_failures
from impctl.spark.fragments import with_fragment
from impctl.spark.rounds import Frames, Rounds
from impctl.spark.sketches import capture_sketches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FRAGMENT = "impctl_fragment"


def capture_recursive(
    spark: SparkSession,
    query: Query,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    frames: Frames,
    *,
    versions: Mapping[TableName, TableVersion] | None = None,
    limits: Limits = LIMITS,
) -> dict[AccessId, FragmentSet]:
    """The same as `capture_sketches`, of any query; and UnsupportedError beyond the limits."""
    with plain_failures(versions):
        parts = list(_parts(Rounds(spark, limits), query.root, frames))
    found: dict[AccessId, set[int]] = {access: set() for access in partitions}
    for plan, rows in parts:
        accesses = {scan.access for scan in scans_of(plan)} & partitions.keys()
        if not accesses:
            continue
        part, own = replace(query, root=plan), {access: partitions[access] for access in accesses}
        judged = carried(verdict, part, {a: p.attribute for a, p in own.items()})
        captured = capture_sketches(spark, part, judged, own, rows, versions=versions)
        for access, fragments in captured.items():
            found[access].update(fragments)
    return {a: FragmentSet.of(found[a], p.size) for a, p in partitions.items()}


def _parts(rounds: Rounds, plan: Plan, frames: Frames) -> Iterator[tuple[Plan, Frames]]:
    """The plan, and base and step of each of its fixpoints, with the rows of their accesses."""
    yield over_tables(plan), rounds.frames_over(plan, frames)
    for fixpoint in outer_fixpoints(plan):
        yield from _parts(rounds, fixpoint.base, frames)
        rows = rounds.rows(fixpoint, frames)
        leaves = dict.fromkeys((table_of(leaf).access for leaf in leaves_of(fixpoint)), rows)
        yield from _parts(rounds, step_over_table(fixpoint), {**frames, **leaves})


def derives_all(
    spark: SparkSession,
    fixpoint: Fixpoint,
    partitions: Mapping[AccessId, RangePartition],
    held: Mapping[AccessId, FragmentSet],
    frames: Frames,
    *,
    versions: Mapping[TableName, TableVersion] | None = None,
    limits: Limits = LIMITS,
) -> bool:
    """Whether over the rows in the sketches `held` the fixpoint has the rows it has over them all.

    `frames` have the columns of the partitions.
    """
    with plain_failures(versions):
        some = {
            access: _within(frame, partitions[access], held[access]) if access in held else frame
            for access, frame in frames.items()
        }
        over, over_all = (Rounds(spark, limits).rows(fixpoint, one) for one in (some, frames))
        apart = over.exceptAll(over_all).unionAll(over_all.exceptAll(over))
        return not apart.take(1)


def _within(frame: DataFrame, partition: RangePartition, held: FragmentSet) -> DataFrame:
    """The rows of these fragments."""
    from pyspark.sql import functions as F

    tagged = with_fragment(frame, partition, partition.attribute, _FRAGMENT)
    rows = [(number,) for number in held.ids]
    ids = frame.sparkSession.createDataFrame(rows, f"{_FRAGMENT} int")
    return tagged.join(F.broadcast(ids), _FRAGMENT, "left_semi").drop(_FRAGMENT)

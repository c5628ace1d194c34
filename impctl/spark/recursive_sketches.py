"""Sketches of recursive queries, captured in Spark.

Law: all rows of a fixpoint count, used above or not: its sketches hold whatever takes part in
deriving them. Over a table with these rows, the base, the step and the query above are queries of
their own, each captured as any other; what they need of an access together is its sketch. That is
of all derivations, also where one of each row would do: which one a sketch holds is its own choice,
so whether it holds one is told by deriving the rows over it. Of a fixpoint that is keyed the query
above alone counts: the sketch of the table with its rows, on the column that it is keyed on, is
that of every access below.
Out of scope: the rows (`spark.rounds`), one such capture (`spark.sketches`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.aliases import AccessId, TableName, TableVersion
from impctl.engine.fixpoint.limits import LIMITS, Limits
from impctl.plan.fixpoint_tables import (
    deriving,
    leaves_of,
    outer_fixpoints,
    over_tables,
    table_of,
)
from impctl.plan.nodes import Fixpoint, Plan, Query, Recursive, nodes_of, scans_of
from impctl.plan.recursion import keyed_rows
from impctl.plan.safety.facts import Fact
from impctl.plan.safety.recursion import facts_of_rows
from impctl.plan.safety.verdict import Verdict, carried, states_of
from impctl.sketch.fragments import FragmentSet
from impctl.sketch.partition import RangePartition
from impctl.spark.failures import plain_failures
from impctl.spark.fragments import with_fragment
from impctl.spark.rounds import Frames, Rounds
from impctl.spark.sketches import capture_sketches
from impctl.values import dataclass

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
    keyed = {table.access: table for table in _keyed_tables(query.root, verdict, partitions)}
    verdict = replace(verdict, facts=(*verdict.facts, *_facts(query, verdict, partitions)))
    with plain_failures(versions):
        parts = list(_parts(Rounds(spark, limits), query.root, frames, keyed))
    # What a keyed fixpoint's rows need, its accesses do, and they alone are sketched below it.
    every = {**partitions, **{access: table.partition for access, table in keyed.items()}}
    found: dict[AccessId, set[int]] = {access: set() for access in every}
    for plan, rows in parts:
        accesses = {scan.access for scan in scans_of(plan)} & every.keys()
        if not accesses:
            continue
        part, own = replace(query, root=plan), {access: every[access] for access in accesses}
        judged = carried(verdict, part, {a: p.attribute for a, p in own.items()})
        captured = capture_sketches(spark, part, judged, own, rows, versions=versions)
        for access, fragments in captured.items():
            found[access].update(fragments)
    for access, table in keyed.items():
        for one in table.stands_for:
            found[one] |= found[access]
    return {a: FragmentSet.of(found[a], p.size) for a, p in partitions.items()}


@dataclass(frozen=True, slots=True)
class _KeyedTable:
    """The table of a keyed fixpoint's rows: the accesses that it stands for, and their ranges."""

    access: AccessId
    stands_for: tuple[AccessId, ...]
    partition: RangePartition


def _keyed_tables(
    root: Plan, verdict: Verdict, partitions: Mapping[AccessId, RangePartition]
) -> Iterator[_KeyedTable]:
    keyed = keyed_rows(root, verdict.key_columns)
    for node in nodes_of(root):
        if not isinstance(node, Fixpoint):
            continue
        table = table_of(node)
        for attribute in table.attributes:
            if attribute.id in keyed:
                accesses = keyed[attribute.id]
                own = partitions[accesses[0]]
                assert {partitions[access].id for access in accesses} == {own.id}
                ranges = replace(own, table=table.table, attribute=attribute.name)
                yield _KeyedTable(table.access, accesses, ranges)


def _facts(
    query: Query, verdict: Verdict, partitions: Mapping[AccessId, RangePartition]
) -> Iterator[Fact]:
    """What is known of the rows of fixpoints, where these are tables."""
    states = states_of(verdict, query, {a: p.attribute for a, p in partitions.items()})
    for node, state in zip(nodes_of(query.root), states, strict=True):
        if isinstance(node, Fixpoint):
            yield from facts_of_rows(node, state)


def _parts(
    rounds: Rounds, plan: Plan, frames: Frames, keyed: Collection[AccessId]
) -> Iterator[tuple[Plan, Frames]]:
    """The plan, and base and step of each of its fixpoints, with the rows of their accesses."""
    yield over_tables(plan), rounds.frames_over(plan, frames)
    for fixpoint in outer_fixpoints(plan):
        if table_of(fixpoint).access in keyed:
            continue
        rows = rounds.rows(fixpoint, frames)
        nodes: tuple[Fixpoint | Recursive, ...] = (fixpoint, *leaves_of(fixpoint))
        tables = (table_of(node).access for node in nodes)
        known = {**frames, **dict.fromkeys(tables, rows)}
        for part in deriving(fixpoint):
            yield from _parts(rounds, part, known, keyed)


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

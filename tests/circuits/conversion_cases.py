"""State of random plans in circuits that keep, read or bound other pieces of it.

Law: what one circuit hands over goes by way of what a store would hold.
Out of scope: whether sketches stay what they were (`test_plans_against_reference`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import pyarrow as pa

from impctl.compile.compile import Compiled
from impctl.compile.flows import AsRecorded, SideChoice, SideFacts, Source, Strategy
from impctl.compile.session import MaintainedQuery, hand_over
from impctl.data.vector import Vector
from tests.circuits.plan_cases import Rows, table_of
from tests.support.reference_partners import ReferencePartners
from tests.support.restored_query import Stored, restored


@dataclass(frozen=True)
class SomeDistant:
    """Leaves a random part of the sides, and of the groupings, that can be read to the reader."""

    rng: Random
    groups: Random
    has_filter: bool = True
    by_scalars: bool = True
    """Whether rows that scalars select are left to the reader, which no conversion changes."""

    def choose(self, facts: SideFacts) -> SideChoice:
        if facts.by_scalars:
            strategy = Strategy.FILES if self.by_scalars else Strategy.INDEX
            return SideChoice(facts.name, facts.tables, strategy, "as is said")
        rng = self.groups if facts.is_grouping else self.rng
        is_distant = facts.readers and rng.random() < 0.5
        strategy = rng.choice(facts.readers) if is_distant else Strategy.INDEX
        return SideChoice(facts.name, facts.tables, strategy, "at random")


def some_buffers(rng: Random) -> dict[str, int]:
    """Small buffers for a random part of what could be bounded."""
    names = [f"{kind}{at}" for kind in ("top", "aggregate", "witness") for at in range(8)]
    return {name: rng.choice((1, 1, 2, 3)) for name in names if rng.random() < 0.5}


def moved_buffers(before: Compiled, after: Compiled) -> list[str]:
    """What a conversion did to first rows and values of MIN and MAX."""
    read = {*before.sides_by(Strategy.FILES), *after.sides_by(Strategy.FILES)}
    sizes = {one.piece: one.size for one in before.buffers if one.piece not in read}
    moved = []
    for one in after.buffers:
        if one.piece in sizes and (one.size is None) != (sizes[one.piece] is None):
            what = "groups" if one.piece.startswith("aggregate") else "first rows"
            moved.append(f"{what} {'kept again' if one.size is None else 'bounded'}")
    return moved


def recorded(compiled: Compiled) -> AsRecorded:
    """The choices that the circuit was made by."""
    by_spark, by_files = map(compiled.sides_by, (Strategy.SPARK, Strategy.FILES))
    return AsRecorded(by_spark, from_files=by_files)


def whole_table(
    tables: Mapping[str, Rows], source: Source, keys: Mapping[str, Vector]
) -> list[pa.Table]:
    """All rows of a source's table, where a buffer asks for some."""
    return [table_of(source.table, tables[source.table]).select(source.scan.table_columns)]


def converted(
    session: MaintainedQuery, stored: Stored, compiled: Compiled, partners: ReferencePartners
) -> tuple[MaintainedQuery, ReferencePartners]:
    """The session in a circuit that may keep other sides, and who reads those that it lacks."""
    after = restored(session, stored, MaintainedQuery(compiled))
    hand_over(session, after, partners.whole, partial(whole_table, partners.tables))
    partners = replace(partners, compiled=compiled)
    after.read_by(partners)
    return after, partners

"""Sketches that are one sketch: those of all accesses below a fixpoint that is keyed.

Law: what is said here holds of any fixpoint that can be keyed, whether its sketches were captured
so or with its barrier: a wider sketch gives the same answer. Rows of a fixpoint that is keyed are
all there, or not at all, only where all accesses below read the same ranges.
Out of scope: when a fixpoint can be keyed (`safety.transfer`), places of the text that such
accesses share with others (`spark.predicates`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from impctl.app.preparing.prepared import PreparedQuery
from impctl.plan.recursion import is_recursive
from impctl.safety.judge import Judges, keyed_groups
from impctl.sketch.sketch import FragmentSet
from impctl.store.records import StoredSketch
from impctl.types import AccessId

Groups = Collection[frozenset[AccessId]]


def groups_of(prepared: PreparedQuery, sketches: Sequence[StoredSketch]) -> Groups:
    """Per fixpoint that can be keyed with these sketches, the accesses that read by one filter.

    By the plan that is run, and by the one that sketches are kept by.
    """
    judges, result = Judges(), set[frozenset[AccessId]]()
    for root in (prepared.core, prepared.root):
        if sketches and is_recursive(root):
            by = judges.of(replace(prepared.query, root=root))
            own = {s.access: s.attribute for s in sketches if s.access in by.accesses}
            result.update(keyed_groups(root, own, by))
    return result


def evened(prepared: PreparedQuery, sketches: Sequence[StoredSketch]) -> tuple[StoredSketch, ...]:
    """The sketches, those of one group with what any of them has; none where ranges differ."""
    result = {sketch.access: sketch for sketch in sketches}
    for group in groups_of(prepared, sketches):
        own = [result.pop(access) for access in group if access in result]
        if len({sketch.partition.id for sketch in own}) == 1:
            ids = {one for sketch in own for one in sketch.fragments.ids}
            every = FragmentSet.of(sorted(ids), own[0].partition.size)
            result |= {sketch.access: replace(sketch, fragments=every) for sketch in own}
    return tuple(result[sketch.access] for sketch in sketches if sketch.access in result)

"""Whether the sketch of one query serves another one that differs in constants only.

Law (Niu et al., provenance-based data skipping, section on reuse, with top-k, set operations and
windows added): `allowed` means that over any one database the provenance of the asked query lies
in that of the captured one, barriers included, and that sketches of these attributes are safe for
the asked query itself; so its answer over the sketch is its answer over the tables. Safety is
judged anew, because constants decide it (`WHERE v > 0` makes a sum monotone). Unsure is no.
What a query only puts out decides nothing about its provenance: the cores are compared.
Out of scope: whether the sketch is current, which of several to take (`app.using.reuse`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field

from impctl.aliases import AccessId, ColumnName
from impctl.expr.nodes import Span
from impctl.plan.fingerprint import fingerprint
from impctl.plan.nodes import Fixpoint, Plan, Query, nodes_of, scans_of
from impctl.plan.reuse.alignment import accesses_between, aligned
from impctl.plan.reuse.pairing import find_mismatch
from impctl.plan.rules.order import core_of
from impctl.plan.safety.facts import Fact
from impctl.plan.safety.verdict import Verdict, check_safety, of_core
from impctl.values import dataclass

_LOOKED_AT = "a LIMIT of the query looks at"


@dataclass(frozen=True, slots=True)
class ReuseVerdict:
    """Whether the sketch may be used, and why (not); `span` is a place in the asked query.

    `accesses`: per access of the captured query, the access of the asked one that takes its place.
    """

    allowed: bool
    reason: str
    span: Span | None = None
    accesses: Mapping[AccessId, AccessId] = field(default_factory=dict)


def check_reuse(
    asked: Query,
    captured: Query,
    sketched: Mapping[AccessId, ColumnName],
    facts: Collection[Fact],
) -> ReuseVerdict:
    """Judge using sketches of `sketched[access of captured]` for the asked query.

    `facts` must be true of the very versions that the sketch stands for and the query reads.
    """
    core, model = core_of(asked.root), core_of(captured.root)
    plan = aligned(core, model)
    if plan is None:
        return ReuseVerdict(False, "the queries differ in more than constants of conditions")
    accesses = {there: here for here, there in accesses_between(core, model).items()}
    own = {accesses[access]: column for access, column in sketched.items()}
    safety = check_safety(asked, own, facts)
    if not safety.safe:
        reason = f"with these constants the sketch is not safe: {safety.reason}"
        return ReuseVerdict(False, reason, safety.span)
    before = check_safety(captured, sketched, facts)
    if not before.safe:
        reason = f"the sketch is no longer safe for the query it was captured for: {before.reason}"
        return ReuseVerdict(False, reason)
    here = of_core(safety, asked, core, own)
    there = of_core(before, captured, model, sketched)
    for core_verdict in (here, there):
        if not core_verdict.safe:
            return ReuseVerdict(False, core_verdict.reason, core_verdict.span)
    if not set(here.barrier_positions) <= set(there.barrier_positions):
        what = "a recursion derives" if _lacks_recursion(model, here, there) else _LOOKED_AT
        return ReuseVerdict(False, f"the sketch lacks the rows that {what}")
    if fingerprint(plan) == fingerprint(model):
        # What one of them puts out beside may ask for barriers, so it is not the first question.
        return ReuseVerdict(
            True, "it was captured for the same conditions and limits", None, accesses
        )
    if _holds_recursion(plan, model, sketched, there.barrier_positions):
        return ReuseVerdict(True, "it holds all that the same recursion derives", None, accesses)
    found = find_mismatch(plan, model, facts)
    if found is not None:
        return ReuseVerdict(False, found.text(asked.sql, captured.sql), found.asked)
    reason = "what it asks for lies within what the sketch was captured for"
    return ReuseVerdict(True, reason, None, accesses)


def _lacks_recursion(plan: Plan, here: Verdict, there: Verdict) -> bool:
    lacking = set(here.barrier_positions) - set(there.barrier_positions)
    return any(isinstance(n, Fixpoint) for at, n in enumerate(nodes_of(plan)) if at in lacking)


def _holds_recursion(
    plan: Plan, model: Plan, sketched: Collection[AccessId], barriers: Collection[int]
) -> bool:
    """Whether all that is sketched lies below fixpoints that both plans have, constants and all.

    The sketch holds derivations of all their rows, so any query over them has its answer. Not so
    of fixpoints that are no `barriers` but keyed: they are as tables are.
    """
    held: set[AccessId] = set()
    for at, (node, other) in enumerate(zip(nodes_of(plan), nodes_of(model), strict=True)):
        if (
            at in barriers
            and isinstance(other, Fixpoint)
            and fingerprint(node) == fingerprint(other)
        ):
            held |= {scan.access for scan in scans_of(other)}
    return bool(held) and held >= set(sketched)

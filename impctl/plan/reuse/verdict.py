"""Whether the sketch of one query serves another: of other constants, or over the same recursion.

Law (Niu et al., provenance-based data skipping, section on reuse, with top-k, set operations and
windows added): `allowed` means that over any one database the provenance of the asked query lies
in that of the captured one, barriers included, and that sketches of these attributes are safe for
the asked query itself; so its answer over the sketch is its answer over the tables. Safety is
judged anew, because constants decide it (`WHERE v > 0` makes a sum monotone). Unsure is no.
What a query only puts out decides nothing about its provenance: the cores are compared.
Of queries that have no more in common than a recursion the sketches below it serve, no others.
Out of scope: whether the sketch is current, which of several to take (`app.using.reuse`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field

from impctl.expr.nodes import Span
from impctl.plan.fingerprint import fingerprint
from impctl.plan.nodes import Fixpoint, Plan, Query, nodes_of
from impctl.plan.reuse.alignment import accesses_between, aligned
from impctl.plan.reuse.pairing import find_mismatch
from impctl.plan.reuse.same_recursion import has_recursion_like, held_accesses
from impctl.plan.rules.order import core_of
from impctl.plan.safety.facts import Fact
from impctl.plan.safety.verdict import Verdict, check_safety, of_core
from impctl.types import AccessId, ColumnName
from impctl.values import dataclass

_LOOKED_AT = "a LIMIT of the query reads"
_OTHER = "the queries differ in more than the constants in their conditions"
_OTHER_RECURSION = "the constants inside WITH RECURSIVE differ, which changes what it derives"
_SAME_RECURSION = "it holds all rows that the same recursion needs"
_NO_LONGER_SAFE = "the sketch is no longer safe for the query it was captured for"
_UNREAD = "the recursion that both queries share reads no table that has a sketch"
_KEYED = "its recursion is keyed, so the sketch holds only the rows that its own result needs"


@dataclass(frozen=True, slots=True)
class ReuseVerdict:
    """Whether the sketch may be used, and why (not); `span` is a place in the asked query.

    `accesses`: per access of the asked query that a sketch may serve, the access of the captured
    one whose sketch that is.
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
    is_alike = has_recursion_like(core, model)
    result = ReuseVerdict(False, _OTHER_RECURSION if is_alike else _OTHER)
    if plan is not None:
        result = _of_one_template(asked, captured, core, model, plan, sketched, facts)
    if result.allowed or not is_alike:
        return result
    other = _of_one_recursion(asked, captured, core, model, sketched, facts)
    if other is None or not (other.allowed or plan is None):
        return result
    return other


def _of_one_template(
    asked: Query,
    captured: Query,
    core: Plan,
    model: Plan,
    plan: Plan,
    sketched: Mapping[AccessId, ColumnName],
    facts: Collection[Fact],
) -> ReuseVerdict:
    """Judge plans of one shape; `plan` is the core with the identities of the captured one's."""
    accesses = accesses_between(core, model)
    own = {here: sketched[there] for here, there in accesses.items() if there in sketched}
    safety = check_safety(asked, own, facts)
    if not safety.safe:
        reason = f"with these constants the sketch is not safe: {safety.reason}"
        return ReuseVerdict(False, reason, safety.span)
    before = check_safety(captured, sketched, facts)
    if not before.safe:
        return ReuseVerdict(False, f"{_NO_LONGER_SAFE}: {before.reason}")
    here = of_core(safety, asked, core, own)
    there = of_core(before, captured, model, sketched)
    for core_verdict in (here, there):
        if not core_verdict.safe:
            return ReuseVerdict(False, core_verdict.reason, core_verdict.span)
    if not set(here.barrier_positions) <= set(there.barrier_positions):
        what = "a recursion derives" if _lacks_recursion(model, here, there) else _LOOKED_AT
        return ReuseVerdict(False, f"the sketch does not have the rows that {what}")
    if fingerprint(plan) == fingerprint(model):
        # What one of them puts out beside may ask for barriers, so it is not the first question.
        return ReuseVerdict(
            True, "it was captured for the same conditions and limits", None, accesses
        )
    held = held_accesses(core, model, there.barrier_positions)
    if sketched and all(held.get(access) == accesses[access] for access in own):
        return ReuseVerdict(True, _SAME_RECURSION, None, accesses)
    result = find_mismatch(plan, model, facts)
    if result is not None:
        return ReuseVerdict(False, result.text(asked.sql, captured.sql), result.asked)
    reason = "the query needs only rows that the sketch was captured for"
    return ReuseVerdict(True, reason, None, accesses)


def _of_one_recursion(
    asked: Query,
    captured: Query,
    core: Plan,
    model: Plan,
    sketched: Mapping[AccessId, ColumnName],
    facts: Collection[Fact],
) -> ReuseVerdict | None:
    """Judge what the sketches hold of fixpoints that both queries have; None where that is none.

    Only what lies below these is read by the sketches, all else whole.
    """
    before = check_safety(captured, sketched, facts)
    there = of_core(before, captured, model, sketched) if before.safe else before
    if not there.safe:
        return ReuseVerdict(False, f"{_NO_LONGER_SAFE}: {there.reason}")
    held = held_accesses(core, model, there.barrier_positions)
    accesses = {here: other for here, other in held.items() if other in sketched}
    if not accesses:
        if not held_accesses(core, model, range(len(list(nodes_of(model))))):
            return None
        return ReuseVerdict(False, _KEYED if there.has_keyed_fixpoints else _UNREAD)
    own = {here: sketched[other] for here, other in accesses.items()}
    # As barriers, whatever the asked query could make of them: that is what the sketches are for.
    safety = check_safety(asked, own, facts, has_keyed_fixpoints=False)
    here = of_core(safety, asked, core, own) if safety.safe else safety
    if not here.safe:
        return ReuseVerdict(
            False, f"for the recursion that both queries share: {here.reason}", here.span
        )
    left = any(other not in accesses.values() for other in sketched)
    rest = "; the other tables of the sketch are read in full" if left else ""
    return ReuseVerdict(True, f"{_SAME_RECURSION}{rest}", None, accesses)


def _lacks_recursion(plan: Plan, here: Verdict, there: Verdict) -> bool:
    lacking = set(here.barrier_positions) - set(there.barrier_positions)
    return any(isinstance(n, Fixpoint) for at, n in enumerate(nodes_of(plan)) if at in lacking)

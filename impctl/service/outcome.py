"""Which failure decides how a run ends, and unsound sketches as failures."""

from __future__ import annotations

from dataclasses import replace

from impctl.errors import INTERRUPTED, ImpctlError, UnsoundSketchError, with_limit
from impctl.service.results import (
    REFUSED,
    CaptureResult,
    DueResult,
    Failure,
    MaintainResult,
    Outcome,
    PlanResult,
    Result,
    VerifyResult,
)

GRAVITY = (5, 1, INTERRUPTED, 2, 3, 4, 7, 6)
"""Exit codes by gravity: with several failures, the first of these that occurs is the run's.

An unsound sketch comes first; what a later try may cure comes last.
"""


def gravest(outcome: Outcome) -> Failure | None:
    """The failure that decides the exit code; None where all went well."""
    return min(outcome.failures, key=lambda failure: _gravity(failure.error), default=None)


def for_report(outcome: Outcome) -> Outcome:
    """`outcome`, with a failure for every unsound sketch that a check brought up.

    So no use case can report an unsound sketch and have the run end well. What failed for the limit
    on open files says so, wherever that was.
    """
    failures = tuple(Failure(one.query, with_limit(one.error)) for one in outcome.failures)
    told = {f.query for f in outcome.failures if isinstance(f.error, UnsoundSketchError)}
    match = [
        Failure(result.query, error)
        for result in outcome.results
        if isinstance(result, VerifyResult)
        and result.query not in told
        and (error := _unsoundness(result)) is not None
    ]
    return replace(outcome, failures=(*failures, *match))


def _unsoundness(result: VerifyResult) -> UnsoundSketchError | None:
    hint = "recapture it with `impctl capture`, and please report this"
    if not result.covers:
        names = ("NULL" if f == result.total else str(f) for f in result.missing)
        return UnsoundSketchError(
            f"The sketch of query `{result.query}` is too small on "
            f"`{result.table}.{result.attribute}`; it lacks the ranges {', '.join(names)}",
            hint=hint,
        )
    if result.results_equal is False:
        return UnsoundSketchError(
            f"Query `{result.query}` has a different result with its sketch than without", hint=hint
        )
    if result.answer_equal is False:
        return UnsoundSketchError(
            f"The materialized result of query `{result.query}` differs from the result of "
            "the query",
            hint=hint,
        )
    return None


def _gravity(error: ImpctlError) -> int:
    return GRAVITY.index(error.exit_code) if error.exit_code in GRAVITY else 0


def is_pending(outcome: Outcome) -> bool:
    """Whether a run that only explained found something to do."""
    return any(_is_to_do(result) for result in outcome.results)


def _is_to_do(result: Result) -> bool:
    match result:
        case PlanResult():
            return result.action not in ("none", REFUSED)
        case DueResult():
            return result.due
        case MaintainResult():
            return result.foreseen and result.action != "none"
        case CaptureResult():
            return result.foreseen and result.stored in ("none", "stale", "uneven")
        case _:
            return False

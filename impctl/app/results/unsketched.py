"""What each command says of a query that is to have no sketch (`sketch: none` in the file).

Law: it is told and counts as nothing to do; a sketch that was stored before is left where it is.
Out of scope: queries that could have none (`app.preparing.refused`).
"""

from __future__ import annotations

from impctl.app.results.explanations import CheckResult
from impctl.app.results.foreseen import PlanResult
from impctl.app.results.results import CaptureResult, MaintainResult, StatusResult

SKETCH_NONE = "sketch_none"
"""The reason code, and the mode told."""

ASKED_FOR_NONE = "the workload file sets `sketch: none`"
"""Why a query is read whole."""


def unsketched_check(query: str) -> CheckResult:
    """As `check` says it."""
    return CheckResult(query, False, SKETCH_NONE, ASKED_FOR_NONE)


def unsketched_capture(query: str) -> CaptureResult:
    """As `capture` says it, of a dry run too."""
    return CaptureResult(
        query=query,
        action="none",
        sketches=(),
        versions={},
        mode=SKETCH_NONE,
        elapsed_ms=0.0,
        spark_ms=0.0,
        engine_ms=0.0,
        reason=ASKED_FOR_NONE,
    )


def unsketched_plan(query: str, policy: str) -> PlanResult:
    """As `plan` says it."""
    return PlanResult(
        query=query,
        action="none",
        by=None,
        reason_code=SKETCH_NONE,
        reason=ASKED_FOR_NONE,
        policy=policy,
        since={},
        versions={},
    )


def unsketched_maintain(
    query: str, code: str = SKETCH_NONE, reason: str = ASKED_FOR_NONE
) -> MaintainResult:
    """As `maintain` says it, of no table and no attribute; of a query that can have none, too."""
    return MaintainResult(
        query=query,
        table="",
        attribute="",
        total=0,
        action="none",
        reason_code=code,
        reason=reason,
        since={},
        versions={},
        added=(),
        removed=(),
        changes=0,
        elapsed_ms=0.0,
        read_ms=0.0,
        engine_ms=0.0,
        commit_ms=0.0,
    )


def unsketched_status(query: str, policy: str) -> StatusResult:
    """As `status` says it: there is nothing that could be stale."""
    return StatusResult(
        query=query,
        sketches=(),
        versions={},
        pending_versions={},
        stale=False,
        mode=SKETCH_NONE,
        policy=policy,
        state_bytes=0,
    )

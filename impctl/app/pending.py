"""Whether a run that only explained found something to do.

Law: what `--detailed-exitcode` tells; a run that did something has nothing pending.
Out of scope: the exit code itself (`cli.boundary`).
"""

from __future__ import annotations

from impctl.app.foreseen import PlanResult
from impctl.app.results import CaptureResult, MaintainResult, Outcome, Result


def is_pending(outcome: Outcome) -> bool:
    """Whether a run that only explained found something to do."""
    return any(_is_to_do(result) for result in outcome.results)


def _is_to_do(result: Result) -> bool:
    match result:
        case PlanResult():
            return result.action != "none"
        case MaintainResult():
            return result.foreseen and result.action != "none"
        case CaptureResult():
            return result.foreseen and result.stored in ("none", "stale", "uneven")
        case _:
            return False

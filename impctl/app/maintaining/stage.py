"""What `maintain` is about to do with one stale query: decided once, then run or explained.

Law: a stage is all that a run acts on and all that `plan` and `--dry-run` show, so the two cannot
differ; making one writes nothing and starts no Spark.
Out of scope: making it (`app.maintaining.decide`), carrying it out (`app.maintaining.run`),
showing it (`app.plan`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.app.maintaining.changes import Need
from impctl.store.records import RunKind
from impctl.tables.changes import Changes
from impctl.values import dataclass

CLOCK_MOVED = "clock_moved"
EXPIRED = "expired"
GROUPED_BY_SPARK = "grouped_by_spark"
RECAPTURE_CHEAPER = "recapture_cheaper"


@dataclass(frozen=True, slots=True)
class ReadChange:
    """A change that was read, and the milliseconds it took."""

    need: Need
    changes: Changes
    elapsed_ms: float


@dataclass(frozen=True, slots=True)
class Stage:
    """`action` is exact, touch or recapture; `by` who computes, None where not looked at yet.

    `needs` are the changes to be maintained, `read` those already read; a change that Spark groups
    is not.
    """

    action: str
    reason_code: str
    reason: str
    by: str | None = None
    needs: tuple[Need, ...] = ()
    read: tuple[ReadChange, ...] = ()

    @property
    def is_recapture(self) -> bool:
        return self.action == "recapture"

    @property
    def is_grouped(self) -> bool:
        """Whether Spark groups the change before the engine sees it."""
        return self.reason_code == GROUPED_BY_SPARK

    @property
    def cost_kind(self) -> RunKind:
        """Which recorded runs it is like."""
        return RunKind.GROUPED if self.is_grouped else RunKind.MAINTAIN

    @property
    def read_ms(self) -> float:
        return sum(result.elapsed_ms for result in self.read)


def recapture_stage(code: str, reason: str) -> Stage:
    """A recapture, and why."""
    return Stage("recapture", code, reason)


def changed_rows(read: Sequence[ReadChange]) -> int:
    """Rows of the changes together."""
    return sum(result.changes.rows for result in read)

"""Frozen records of what happened to a query and its tables: runs, verifications, pending changes.

Law: as for `app.results.results`, whose documents they are part of; times are UTC.
Out of scope: finding it out (`app.status`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """What was committed to a table since the sketch's version, by the log; None is not known.

    `rows` are those that maintaining reads: an updated row counts twice, and so does every row of
    a file that was rewritten without a change feed and without the writer's own count.
    """

    table: str
    since: int
    versions: int
    files: int | None
    rows: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run recorded for a query; `at` is when it started (UTC).

    `changes` are the changed rows it carried on; None where it read whole tables.
    """

    action: str
    reason_code: str
    reason: str
    at: datetime
    elapsed_ms: float
    changes: int | None
    versions: Mapping[str, int]


VERIFY = "verify"
"""The action under which a verification is recorded: `added` is the slack, `removed` how many
fragments were missing."""
WHOLE_TABLES = frozenset({"capture", "recapture", VERIFY})
"""Actions that read whole tables, not their changes."""
VERIFIED = "verified"
"""The reason code of one that found nothing wrong."""


@dataclass(frozen=True, slots=True)
class VerifiedEntry:
    """The last verification that was recorded: what it found, when, and for which versions."""

    sound: bool
    slack: int
    at: datetime
    versions: Mapping[str, int]

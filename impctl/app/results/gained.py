"""Frozen records of what sketches left out and what they cost: `gain`.

Law: as for `app.results.results`, whose documents they are part of; counted, but for `saved_ms`.
Out of scope: how it is counted (`app.gain`).
"""

from __future__ import annotations

from datetime import datetime

from impctl.values import dataclass

PAYS, COSTS_MORE, NOT_USED_YET = "pays", "costs_more", "not_used"
ANSWERS = "answers"
"""The materialized result was read, and saved less than its upkeep so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GainResult:
    """The uses of one query's sketches since a moment, and the runs that kept them up to date.

    `files`, `rows` and `bytes` were read, `..._plain` would have been by the query's conditions
    alone; of `uses`, `used` went through a sketch. `kept_answers` came from the materialized
    result and read no file; they are no uses, but `last_use` is of either. `answers_bytes` is what
    they would have read of the tables as they are now. `upkeep_ms` is what captures and maintaining
    took. `saved_ms` is an estimate: all bytes skipped, at the rate at which Spark reads.
    """

    query: str
    since: datetime | None
    uses: int
    used: int
    last_use: datetime | None
    files: int
    files_plain: int
    rows: int
    rows_plain: int
    bytes: int
    bytes_plain: int
    query_ms: float
    upkeep_runs: int
    upkeep_ms: float
    saved_ms: float
    verdict: str
    kept_answers: int = 0
    answers_bytes: int = 0
    hint: str = ""

    @property
    def bytes_left_out(self) -> int:
        return self.bytes_plain - self.bytes

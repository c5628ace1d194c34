"""What came and went of a query's answer, as it is told.

Law: as for `app.results.results`; in JSON the rows stand in place of the Arrow table.
Out of scope: telling it (`app.using.changed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from impctl.app.results.answer import ArrowAnswer
from impctl.values import dataclass

STATE = "state"
"""Who told, where the rows that are kept were carried on."""


@dataclass(frozen=True, kw_only=True)
class ChangesResult(ArrowAnswer):
    """Rows that came and went from the versions `since` to `versions`; of the whole answer none.

    `by`: state, where the kept rows were carried on, or engine, where answers were compared;
    `by_reason` why so.
    """

    query: str
    since: Mapping[str, int]
    versions: Mapping[str, int]
    elapsed_ms: float
    by: str
    by_reason: str = ""
    moments: Mapping[str, str] = field(default_factory=dict)

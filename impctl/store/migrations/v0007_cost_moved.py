"""Which tables' changes a run carried on, beside what it cost.

Why: a change of one table may ask for what another's never does; one line through the runs of a
query had an expensive change of customers make a cheap one of parts look dear. Empty where a
release before wrote the row. An older impctl would write rows without it.
Out of scope: what is learned from it (`app.maintaining.estimates`).
"""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = ("ALTER TABLE cost ADD COLUMN moved TEXT NOT NULL DEFAULT ''",)

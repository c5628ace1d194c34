"""How the state was kept that a run carried on, beside what the run cost.

Why: what runs took while sides were read from files stayed in the estimates after these were kept
again, and had them recapture for good. Of runs before nobody knows the layout, so where a choice of
state was ever made they are forgotten; elsewhere state is kept as it was captured. An older impctl
would write rows without it. What the last choice was made by is forgotten too: the next run looks.
Out of scope: what is learned from it (`app.maintaining.estimates`).
"""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    "ALTER TABLE cost ADD COLUMN layout TEXT NOT NULL DEFAULT ''",
    "DELETE FROM cost WHERE EXISTS (SELECT 1 FROM state_choice)",
    "DELETE FROM state_choice",
)

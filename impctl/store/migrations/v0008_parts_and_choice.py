"""What the parts of a run took, and what the choice of state was made by.

Why: which state is worth keeping is told by what each operator took and what each read of a side
took, not by the whole of a run (`parts`, empty where a release before wrote the row). And a choice
that is made must not be made anew after each run: it is once rates, budget or bytes have moved from
those that it was made by (`state_choice`, one row at most).
Out of scope: what is learned from it (`app.maintaining.keeping`).
"""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    "ALTER TABLE cost ADD COLUMN parts TEXT NOT NULL DEFAULT ''",
    """CREATE TABLE state_choice (
        place INTEGER PRIMARY KEY CHECK (place = 1),
        chosen TEXT NOT NULL,
        seal INTEGER NOT NULL
    )""",
)

"""What each sketch version rests on, so that an older one can be used and not only kept.

Why: the marks of a query's tables, the reading of its SQL and its assumptions were known of the
newest version alone. A version kept from before a backup took the table's place could not be told
from one of the table that stands there now (decision 0039). Nothing is carried over: what an older
impctl kept has no row here, and is never offered.
Out of scope: reading and writing rows (`store.kept`), what is in them (`app.capturing.meta`).
"""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    """CREATE TABLE sketch_basis (
        query_id INTEGER NOT NULL, generation INTEGER NOT NULL, assumptions TEXT NOT NULL,
        basis TEXT NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, generation)) WITHOUT ROWID""",
)

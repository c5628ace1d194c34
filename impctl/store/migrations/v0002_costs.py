"""What runs cost, kept apart from what they did.

Why: estimates want the latest runs of each kind, few of them and at once. History grows without
bound and mixes the kinds, so the latest captures would have to be searched behind thousands of
maintained changes. Nothing is carried over: history did not say how large a captured table was,
nor what of its time went into starting Spark.
Out of scope: reading and writing rows (`store.costs`).
"""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    """CREATE TABLE cost (
        query_id INTEGER NOT NULL, kind TEXT NOT NULL, number INTEGER NOT NULL,
        rows INTEGER NOT NULL, bytes INTEGER NOT NULL, elapsed_ms REAL NOT NULL,
        spark INTEGER NOT NULL, start_ms REAL NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, kind, number)) WITHOUT ROWID""",
)

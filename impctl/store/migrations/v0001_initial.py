"""The first schema.

Why it is cut this way: a commit writes in proportion to what changed. What is fixed by a capture
(`query`, `sketched`, `partition`, `pin_schema`) lies apart from what moves with every commit
(`progress`, `pin`); a `sketch` row is written only when its bits changed and holds until the next
one; boundaries are stored once under a hash of their content. Every row ends with its seal, and
the rows that belong together are held together by a digest of their seals: `progress` has one over
pins and one over runs, `sketch_version` one over the sketch rows that hold for it.
Out of scope: reading and writing rows (the other modules of this room).
"""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    """CREATE TABLE query (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, fingerprint TEXT NOT NULL,
        sql TEXT NOT NULL, mode TEXT NOT NULL, captured INTEGER NOT NULL,
        captured_at REAL NOT NULL, seal INTEGER NOT NULL)""",
    """CREATE TABLE progress (
        query_id INTEGER PRIMARY KEY, generation INTEGER NOT NULL, slack_bound INTEGER NOT NULL,
        assumptions TEXT NOT NULL, state_meta TEXT NOT NULL, has_state INTEGER NOT NULL,
        maintained_at REAL NOT NULL, pins INTEGER NOT NULL,
        runs INTEGER NOT NULL, seal INTEGER NOT NULL)""",
    # Stays as it was made: no command forgets a query.
    "CREATE TABLE forgotten (id INTEGER PRIMARY KEY CHECK (id = 1), generation INTEGER NOT NULL)",
    "INSERT INTO forgotten VALUES (1, 0)",
    """CREATE TABLE pin (
        query_id INTEGER NOT NULL, table_name TEXT NOT NULL, path TEXT NOT NULL,
        table_id TEXT NOT NULL, version INTEGER NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, table_name)) WITHOUT ROWID""",
    """CREATE TABLE pin_schema (
        query_id INTEGER NOT NULL, table_name TEXT NOT NULL, schema_json TEXT NOT NULL,
        seal INTEGER NOT NULL, PRIMARY KEY (query_id, table_name)) WITHOUT ROWID""",
    """CREATE TABLE partition (id TEXT PRIMARY KEY, content TEXT NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE sketched (
        query_id INTEGER NOT NULL, captured INTEGER NOT NULL, access TEXT NOT NULL,
        table_name TEXT NOT NULL, attribute TEXT NOT NULL, partition_id TEXT NOT NULL,
        fragments INTEGER NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, captured, access)) WITHOUT ROWID""",
    """CREATE TABLE sketch (
        query_id INTEGER NOT NULL, access TEXT NOT NULL, generation INTEGER NOT NULL,
        bits BLOB NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, access, generation)) WITHOUT ROWID""",
    """CREATE TABLE sketch_version (
        query_id INTEGER NOT NULL, generation INTEGER NOT NULL, captured INTEGER NOT NULL,
        digest INTEGER NOT NULL, versions TEXT NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, generation)) WITHOUT ROWID""",
    """CREATE TABLE run (
        query_id INTEGER NOT NULL, arrangement TEXT NOT NULL, sequence INTEGER NOT NULL,
        rows INTEGER NOT NULL, bytes INTEGER NOT NULL, checksum INTEGER NOT NULL, file TEXT,
        seal INTEGER NOT NULL, content BLOB,
        PRIMARY KEY (query_id, arrangement, sequence)) WITHOUT ROWID""",
    "CREATE INDEX run_file ON run (file) WHERE file IS NOT NULL",
    """CREATE TABLE history (
        query_id INTEGER NOT NULL, number INTEGER NOT NULL, action TEXT NOT NULL,
        reason_code TEXT NOT NULL, reason TEXT NOT NULL, started_at REAL NOT NULL,
        elapsed_ms REAL NOT NULL, read_ms REAL NOT NULL, engine_ms REAL NOT NULL,
        commit_ms REAL NOT NULL, changes INTEGER NOT NULL, added INTEGER NOT NULL,
        removed INTEGER NOT NULL, versions TEXT NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, number)) WITHOUT ROWID""",
)

"""The next instant at which a row expires, in the description beside a query's state.

Why a format of its own although no table of the catalog changes: as with marks of files (format 3),
the description is checked field by field, and an older impctl would take one with the new field for
damaged. Nothing is carried over: before, no table had an expiry.
Out of scope: what is in the description (`app.capturing.meta`).
"""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = ()

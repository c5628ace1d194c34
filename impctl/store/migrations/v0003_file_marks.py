"""Marks of the files that a query's tables had, in the description beside its state.

Why a format of its own although no table of the catalog changes: the description is checked field
by field, and an older impctl would take one with the new field for damaged. Nothing is carried
over: what a table's files were when an older impctl captured is not known any more, so those
queries have no mark until they are next maintained or captured (decision 0035).
Out of scope: what is in the description (`app.capturing.meta`).
"""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = ()

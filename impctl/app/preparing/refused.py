"""Queries that can have no sketch, told apart from queries that are wrong.

Law: a query is refused where impctl does not read a construct of it or finds no safe attribute;
such a query is answered all the same, without a sketch. What Spark would refuse too, and an
attribute that the file asks for and that is not safe, are mistakes to mend.
Out of scope: why (`safety`, `sql`).
"""

from __future__ import annotations

from impctl.errors import ImpctlError, NotReadError, UnsafeSketchError
from impctl.workload.models import QuerySpec


def is_refused(spec: QuerySpec, error: ImpctlError) -> bool:
    """Whether the error says that the query can have no sketch, and nothing worse."""
    if isinstance(error, UnsafeSketchError):
        return not spec.sketch
    return isinstance(error, NotReadError)

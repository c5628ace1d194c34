"""Failure isolation: one query's error becomes its failure, the others go on.

Law: only errors that impctl raises on purpose are kept; anything else is a bug and climbs.
Out of scope: which failure decides the exit code (`app.results`).
"""

from __future__ import annotations

from impctl.app.results import Failure
from impctl.errors import ImpctlError
from impctl.workload.models import QuerySpec
from impctl.workload.sql_location import sql_location


class Isolated:
    """A context in which an ImpctlError is noted as the failure of one query."""

    def __init__(self, failures: list[Failure], spec: QuerySpec) -> None:
        self.failures = failures
        self.spec = spec

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, ImpctlError):
            return False
        self.failures.append(Failure(self.spec.name, located(error, self.spec)))
        return True


def located(error: ImpctlError, spec: QuerySpec) -> ImpctlError:
    """The error with its place in the SQL text turned into one in the workload file."""
    place = error.location
    if place is not None and place.file == f"query `{spec.name}`":
        error.location = sql_location(spec, place.line, place.column)
    return error

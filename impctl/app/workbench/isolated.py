"""Failure isolation: one query's error becomes its failure, the others go on.

Law: what stops the whole run is an interrupt, nothing else: an error that impctl did not raise on
purpose is a bug in one query's way, told as such (exit 1, with its trace under `-vv`) and no
reason to leave the other sketches behind.
Out of scope: which failure decides the exit code (`app.results.ending`).
"""

from __future__ import annotations

from impctl.app.results.results import Failure
from impctl.errors import ImpctlError, is_panic, unexpected
from impctl.workload.models import QuerySpec
from impctl.workload.yaml import sql_location


class Isolated:
    """A context in which an error is noted as the failure of one query."""

    def __init__(self, failures: list[Failure], spec: QuerySpec) -> None:
        self.failures = failures
        self.spec = spec

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None or not (isinstance(error, Exception) or is_panic(error)):
            return False
        told = error if isinstance(error, ImpctlError) else unexpected(error)
        self.failures.append(Failure(self.spec.name, located(told, self.spec)))
        return True


def located(error: ImpctlError, spec: QuerySpec) -> ImpctlError:
    """The error with its place in the SQL text turned into one in the workload file."""
    place = error.location
    if place is not None and place.file == f"query `{spec.name}`":
        return error.at(sql_location(spec, place.line, place.column))
    return error

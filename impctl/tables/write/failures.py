"""What deltalake raises while it writes a batch, as errors of ours.

Law: a failure after which the batch may be in the table is never told as one to be tried again.
Out of scope: what is written (`tables.write.apply`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deltalake.exceptions import CommitFailedError

from impctl.errors import (
    EvaluationError,
    ImpctlError,
    RetryableError,
    StorageError,
    TableError,
    UsageError,
)
from impctl.tables.source import DeltaSource, refresh
from impctl.tables.storage import READ_FAILURES, failure_text

if TYPE_CHECKING:
    from impctl.types import TableVersion

_ROW_FAILURES = (
    "cast error",
    "cannot cast",
    "can't cast",
    "out of range",
    "too large to store",
    "too small to store",
    "division by zero",
    "divide by zero",
    "dividebyzero",
    "overflow",
)
_CONSTRAINT_FAILURES = ("constraint", "invariant", "append-only", "validation check")


@contextmanager
def plain_failures(source: DeltaSource, *, is_commit: bool = True) -> Iterator[None]:
    """Turns what deltalake raises while writing, or while it tries a batch, into our errors."""
    try:
        yield
    except Exception as error:
        # deltalake raises bare Exception for a value that does not fit; nothing narrower to name.
        if type(error) is not Exception and not isinstance(error, READ_FAILURES):
            raise
        raise _write_failure(source, error, is_commit=is_commit) from error


def _moved_version(source: DeltaSource) -> TableVersion | None:
    """The table's newest version, where it is not the one that the batch was prepared for."""
    try:
        newest = refresh(source).version
    except ImpctlError:
        return None
    return newest if newest != source.version else None


def _write_failure(source: DeltaSource, error: Exception, *, is_commit: bool) -> ImpctlError:
    text = failure_text(error)
    lowered = text.lower()
    cannot_be_in = not is_commit or isinstance(error, CommitFailedError)
    moved = None if cannot_be_in else _moved_version(source)
    if moved is not None:
        # Not to be retried by machines: an insert would be written twice.
        return ImpctlError(
            f"Writing to table `{source.name}` failed, but the table moved from version "
            f"{source.version} to {moved}, so the batch may be in it: {text}",
            hint="check the table's newest version before you run the command again",
            code="batch_maybe_committed",
        )
    if "features required" in lowered or "unsupported" in lowered:
        return TableError(
            f"impctl cannot write to table `{source.name}`: {text}",
            hint="apply the batch with Spark and the Delta JAR",
            code="table_not_writable",
        )
    if any(phrase in lowered for phrase in _ROW_FAILURES):
        return EvaluationError(
            f"The update of table `{source.name}` fails on a row: {text}",
            hint="restrict `where` to rows for which the expression can be computed",
        )
    if any(phrase in lowered for phrase in _CONSTRAINT_FAILURES):
        return UsageError(
            f"Table `{source.name}` does not accept the batch: {text.split(' Preview of')[0]}",
            hint="correct the batch, or the table's constraints",
        )
    if isinstance(error, CommitFailedError):
        return RetryableError(
            f"Another writer changed table `{source.name}` at the same time: {text}",
            hint="run the command again",
        )
    return StorageError(
        f"Writing to table `{source.name}` failed: {text}",
        hint=f"check that `{source.path}` can be written, then run the command again",
    )

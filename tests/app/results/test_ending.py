"""What a run reports of its failures."""

from __future__ import annotations

import errno
import os

import pytest

from impctl.errors import ImpctlError, Location, StateCorruptError, TableError, unexpected
from impctl.service.outcome import for_report
from impctl.service.results import Failure, Outcome


def _caused(error: ImpctlError, cause: BaseException) -> ImpctlError:
    error.__cause__ = cause
    return error


EMFILE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
KEPT = "kept"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (unexpected(EMFILE), "too_many_open_files"),
        (unexpected(OSError(errno.ENFILE, "Too many")), "too_many_open_files"),
        (unexpected(RuntimeError('Os { code: 24, message: "Too many open files" }')), None),
        (_caused(TableError("t", code=KEPT), EMFILE), "too_many_open_files"),
        (TableError("Unable to open: Too many open files (os error 24)", code=KEPT), None),
        (_caused(StateCorruptError("s", code=KEPT), OSError(errno.EIO, "no")), KEPT),
        (TableError("t", code=KEPT), KEPT),
    ],
    ids=str,
)
def test_the_limit_on_open_files_is_reported_as_such(error: ImpctlError, code: str | None) -> None:
    place = Location("w.yaml", 1, 2)
    (failure,) = for_report(Outcome(failures=(Failure("q", error.at(place)),))).failures
    assert failure.error.code == (code or "too_many_open_files")
    assert (failure.query, failure.error.location) == ("q", place)
    if code != KEPT:
        assert failure.error.exit_code == 6
        assert "ulimit -n" in (failure.error.hint or "")
        assert error.message in failure.error.message

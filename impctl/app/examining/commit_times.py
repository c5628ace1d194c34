"""Times of a table's latest commits that cannot be: in the future, or before the commit before.

Law: told by the log alone, and only where something is wrong; equal times are none. Triggers reckon
such commits as simultaneous with the one before, or as coming right after the last run, so queries
may be maintained sooner than their bounds ask for.
Out of scope: what triggers make of times (`app.maintaining.due.pending`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from impctl.app.results.amounts import moment_text, span_text
from impctl.app.results.findings import Finding, Subject
from impctl.errors import TableError
from impctl.tables.log import Committed, committed_since
from impctl.tables.source import DeltaSource

_LATEST = 20
_TOLERATED = 5.0
"""Seconds by which clocks of two machines may well differ."""

_FIX = "synchronize the clocks of the machines that write the table with a time server"


def commit_time_findings(source: DeltaSource) -> Iterator[Finding]:
    """A warning for each kind of time that cannot be, of the latest commits."""
    subject = Subject.of_table(source.name)
    latest = _latest(source)
    timed = [(one.version, one.at) for one in latest if one.at is not None]
    ahead = [(version, at) for version, at in timed if at > time.time() + _TOLERATED]
    if ahead:
        version, at = ahead[-1]
        by = span_text(at - time.time())
        said = f"The commit of version {version} has a time {by} ahead of this machine's clock"
        yield subject.warning("commit_times", said, _FIX)
    for (version, at), (following, then) in zip(timed, timed[1:], strict=False):
        if then < at - _TOLERATED:
            said = (
                f"The commit of version {following} has the time {_moment(then)}, which is "
                f"before that of version {version}, {_moment(at)}"
            )
            yield subject.warning("commit_times", said, _FIX)
            return


def _latest(source: DeltaSource) -> Sequence[Committed]:
    """The latest commits, as far as the log can be read."""
    try:
        return committed_since(source, max(-1, source.version - _LATEST), {}) or ()
    except TableError:
        return ()


def _moment(at: float) -> str:
    return moment_text(datetime.fromtimestamp(at, UTC))

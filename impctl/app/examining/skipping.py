"""Sketches as findings: what they can never leave out, and what clustering would gain.

Law: by statistics alone, as after a capture (`app.capturing.advice`); a sketch whose table cannot
be read is found with the table.
Out of scope: what uses saved (`app.gain`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from impctl.app.capturing.advice import advice_of
from impctl.app.capturing.cluster_forecast import ClusterForecasts
from impctl.app.results.findings import Area, Finding, Subject
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError
from impctl.store.records import StoredQuery


def skipping_findings(desk: Workbench, stored: Sequence[StoredQuery]) -> Iterator[Finding]:
    """A finding for each query with sketches."""
    if not stored:
        # The store may be one that cannot be read, which is found with it.
        return
    forecasts = ClusterForecasts(desk, desk.reading_store())
    for one in stored:
        subject = Subject(Area.STORE, one.query)
        try:
            result = advice_of(desk.tables, forecasts, one.query, one.sketches)
        except ImpctlError:
            continue
        for advice in result:
            message = advice.message[0].upper() + advice.message[1:]
            yield subject.warning("skips_little", message, advice.fix)
        if not result and one.sketches:
            yield subject.ok("skips_little", "Its sketches can skip files or rows")

"""Packages that a query asks for and that impctl does without otherwise: are they there?

Law: nothing of them is imported. Where one is missing nothing is wrong with the file, and a sketch
may well be read; who captures or maintains here will fail, and is told before.
Out of scope: packages that impctl always needs (`app.examining.requirements`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from impctl.app.results.findings import Area, Finding, Subject
from impctl.engine.fixpoint.absorption import EXTRA_MISSING, PACKAGE, missing_package
from impctl.types import QueryName
from impctl.workload.models import QuerySpec


def extra_warnings(queries: Iterable[QueryName]) -> tuple[str, ...]:
    """What to say of queries whose recursion is to be kept by absorption."""
    names = ", ".join(f"`{name}`" for name in queries)
    missing = missing_package() if names else None
    if missing is None:
        return ()
    text = f"{names} cannot be captured here: {missing.message}; {missing.hint} [{EXTRA_MISSING}]"
    return (text,)


def extra_findings(queries: Mapping[QueryName, QuerySpec]) -> Iterator[Finding]:
    """What these queries need; nothing of packages that none of them asks for."""
    if all(spec.provenance is None for spec in queries.values()):
        return
    subject, missing = Subject(Area.SOFTWARE, PACKAGE), missing_package()
    if missing is None:
        yield subject.ok("extras", f"`{PACKAGE}` is installed, for `provenance: absorption`")
    else:
        yield subject.failed("extras", missing)

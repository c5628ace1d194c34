"""Join trees as findings: whether changes touch what the capture expected.

Law: by what the runs since the capture counted; where the trees were asked for, nobody expected
anything, and there is no finding.
Out of scope: choosing anew (`impctl capture`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from impctl.app.capturing.meta import tree_record
from impctl.app.results.findings import Area, Finding, Subject
from impctl.errors import StateCorruptError
from impctl.store.records import StoredQuery

_FAR_MORE = 10
"""As many times what was expected says that the tables are others by now."""
_FEW = 100
"""Of fewer changed rows the mean says nothing."""


def tree_findings(stored: Sequence[StoredQuery]) -> Iterator[Finding]:
    """A finding for each query whose trees were chosen by an estimate, and have been used."""
    for one in stored:
        try:
            record = tree_record(one)
        except StateCorruptError:
            # Found with the store.
            continue
        if record is None or record.expected is None or record.changes < _FEW:
            continue
        each = record.touched_each
        assert each is not None
        subject = Subject(Area.STORE, one.query)
        said = f"touched {each:,.1f} tuples of its join trees; {record.expected:,.1f} were expected"
        if each > _FAR_MORE * record.expected:
            yield subject.warning(
                "tree_touches_more",
                f"On average, a changed row {said}",
                f"run `impctl capture --query {one.query}`, which counts the keys again",
            )
        else:
            yield subject.ok("tree_touches_more", f"On average, a changed row {said}")

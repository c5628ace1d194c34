"""Why a query has no sketch where a capture would not give it one.

Law: who is told to capture a query is told so only where that may help; a query for which no sketch
is safe, or whose SQL has a construct that impctl does not know, is told that instead.
Out of scope: queries that are answered without a sketch (`app.using.without_sketch`).
"""

from __future__ import annotations

from impctl.app.capturing.definition import stored_query
from impctl.app.preparing.choice import choose, judge_candidates
from impctl.app.preparing.prepared import PreparedQuery, prepare
from impctl.app.preparing.refused import is_refused
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError, RecaptureNeededError, UnsafeSketchError
from impctl.store.reader import StoreReader
from impctl.store.records import StoredQuery
from impctl.workload.models import QuerySpec


def captured_query(desk: Workbench, store: StoreReader | None, spec: QuerySpec) -> StoredQuery:
    """What the store has of a query.

    Raises what refuses the query where that is why it has nothing, else RecaptureNeededError.
    """
    try:
        return stored_query(desk, store, spec)
    except RecaptureNeededError:
        refusal = _refusal(desk, spec)
        if refusal is not None:
            raise refusal from None
        raise


def refusal_of(desk: Workbench, prepared: PreparedQuery) -> UnsafeSketchError | None:
    """The error that says that no sketch of the query is safe; None where there may be one."""
    try:
        if not any(judged.safe for judged in judge_candidates(desk, prepared)):
            choose(desk, prepared)
    except UnsafeSketchError as error:
        return error if is_refused(prepared.spec, error) else None
    return None


def _refusal(desk: Workbench, spec: QuerySpec) -> ImpctlError | None:
    try:
        return refusal_of(desk, prepare(desk, spec))
    except ImpctlError as error:
        # Anything worse is found by the capture, with its place.
        return error if is_refused(spec, error) else None

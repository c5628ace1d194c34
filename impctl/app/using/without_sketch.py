"""A query whose sketch cannot be had now, read without one: the answer is its own all the same.

Law: only what is wrong with the sketch leads here; what is wrong with the query or a table would
be wrong without a sketch too, and stays an error. It is told with the reason and what to do.
Policy `strict`, and whoever requires the sketch, has the error instead.
Out of scope: whose sketch might serve (`app.using.reuse`).
"""

from __future__ import annotations

from dataclasses import replace

from impctl.app.capturing.uncaptured import refusal_of
from impctl.app.preparing.prepared import prepare
from impctl.app.results.results import NO_SKETCH, NOT_USED
from impctl.app.results.subject import named_before
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.using.unread import Unread, unread
from impctl.app.workbench.workbench import Workbench
from impctl.errors import (
    EvaluationError,
    ImpctlError,
    QueryError,
    RecaptureNeededError,
    RetryableError,
    TableError,
    UnsafeSketchError,
)
from impctl.store.disk import STORE_READ_ONLY
from impctl.workload.models import Policy, QuerySpec

OF_THE_SKETCH = (
    EvaluationError,
    QueryError,
    RecaptureNeededError,
    RetryableError,
    TableError,
    UnsafeSketchError,
)
"""What may stop a sketch from being had. Some of it stops the query as well: then reading without
one fails with it again, or is not tried (`unread`)."""


def is_of_the_sketch(error: ImpctlError) -> bool:
    """Whether it kept the sketch from being had; so does a store that may not be written."""
    return isinstance(error, OF_THE_SKETCH) or error.code == STORE_READ_ONLY


def without_sketch(desk: Workbench, spec: QuerySpec, error: ImpctlError) -> Fresh | Unread:
    """The query without the sketch that `error` kept it from; raises it where it must."""
    if desk.policy(spec) is Policy.STRICT:
        raise error
    result = plain(desk, spec, error)
    told = _reason(desk, result, error)
    warnings = (_warning(spec, told),)
    if isinstance(result, Fresh):
        refusal = told if spec.answer else None
        return replace(
            result, action=NO_SKETCH, reason=told.message, warnings=warnings, refusal=refusal
        )
    return replace(result, action=NO_SKETCH, reason=told.message, warnings=warnings)


def plain(desk: Workbench, spec: QuerySpec, error: ImpctlError | None = None) -> Fresh | Unread:
    """The query as it is, at the newest versions; `error`, if any, where it cannot be read."""
    try:
        prepared = prepare(desk, spec)
        versions = desk.tables.versions_of(prepared.tables)
    except QueryError as refused:
        return unread(desk, spec, refused)
    except ImpctlError:
        # What came first says more than what came of it, but for a capture that would fail so too.
        if error is None or error.code == "not_captured":
            raise
        raise error from None
    return Fresh(prepared=prepared, sketches=(), versions=versions, action=NOT_USED)


def why_none(desk: Workbench, spec: QuerySpec, error: ImpctlError) -> ImpctlError:
    """The error that kept the sketch from being had, or what kept it from being captured."""
    if error.code != "not_captured":
        return error
    return _reason(desk, plain(desk, spec, error), error)


def _reason(desk: Workbench, result: Fresh | Unread, error: ImpctlError) -> ImpctlError:
    """Why a query that was never captured could not be, which no capture would mend."""
    if error.code != "not_captured":
        return error
    refusal = result.refusal if isinstance(result, Unread) else refusal_of(desk, result.prepared)
    return error if refusal is None else refusal


def _warning(spec: QuerySpec, error: ImpctlError) -> str:
    """Why there is no sketch, where in the file, and what to do."""
    place = "" if error.location is None else f" ({error.location})"
    hint = "" if error.hint is None else f"; {error.hint}"
    why = named_before(spec.name, error.message)
    return f"query `{spec.name}` is answered without a sketch: {why}{place}{hint}"

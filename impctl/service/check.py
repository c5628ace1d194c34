"""Check whether the workload file is right, and which queries can have a sketch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from impctl.errors import ImpctlError
from impctl.service.context import Context, collect_results, is_refused
from impctl.service.explain import Assessment, answer_entry, assess, extra_warnings
from impctl.service.prepare import prepare
from impctl.service.query import who_answers
from impctl.service.results import AnsweredEntry, CheckResult, Outcome
from impctl.workload.schema import workload_json_schema

if TYPE_CHECKING:
    from impctl.types import QueryName
    from impctl.workload.models import QuerySpec


# Law: checks every query, whatever is wrong with another; writes nothing and does not start Spark.
# A query that can have no sketch is a finding, and a failure only with `strict`; an invalid one is
# a failure.


def check(
    ctx: Context, queries: Sequence[QueryName] | None = None, *, strict: bool = False
) -> Outcome:
    """Check each query (default: all); `strict`: every one must have a sketch."""
    warnings: list[str] = []
    outcome = collect_results(
        ctx.queries(queries), lambda spec: _checked(ctx, spec, warnings, strict=strict)
    )
    known = ctx.workload.queries
    warnings += extra_warnings(
        result.query
        for result in outcome.results
        if isinstance(result, CheckResult)
        and result.supported
        and known[result.query].provenance is not None
    )
    old = [spec for spec in ctx.workload.partitions if spec.is_old_key]
    if old:
        warnings.append(f"{old[0].location}: the key `fragments` is now called `ranges`; rename it")
    return replace(outcome, warnings=tuple(warnings))


def schema_text() -> str:
    """The JSON Schema of the workload file, for editors."""
    return json.dumps(workload_json_schema(), indent=2) + "\n"


def _checked(
    ctx: Context, spec: QuerySpec, warnings: list[str], *, strict: bool
) -> Iterator[CheckResult]:
    answered: AnsweredEntry | None = None
    query: Assessment | None = None
    refusal: ImpctlError | None = None
    try:
        prepared = prepare(ctx, spec)
        answered = who_answers(ctx, prepared)
        if spec.is_sketched:
            query = assess(ctx, prepared, warnings, reads=False)
            refusal = query.refusal
    except ImpctlError as error:
        refusal = error
    if refusal is not None and not is_refused(spec, refusal):
        raise refusal
    if not spec.is_sketched:
        yield CheckResult(spec.name, answered=answered)
        return
    plan = None if query is None or query.capture is None else query.capture.plan
    result = CheckResult(
        spec.name,
        candidates=() if query is None else query.candidates,
        answer=answer_entry(spec, plan, None),
        answered=answered,
    )
    if plan is not None:
        yield replace(result, supported=True, mode=plan.mode.value, reason=plan.reason)
        return
    assert refusal is not None, "a query without a plan was refused"
    reason, hint, place = refusal.message, refusal.hint, refusal.location
    yield replace(result, mode=None, reason=reason, hint=hint, place=place)
    if strict:
        raise refusal

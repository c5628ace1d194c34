"""How a run ends: which failure decides, and its results as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from impctl.errors import (
    INTERRUPTED,
    ImpctlError,
    ProblemsFoundError,
    UnsoundSketchError,
    with_limit,
)
from impctl.service.results import (
    REFUSED,
    CaptureResult,
    DueResult,
    Failure,
    Finding,
    GainResult,
    Level,
    MaintainResult,
    Outcome,
    PlanResult,
    Result,
    VerifyResult,
)

GRAVITY = (5, 1, INTERRUPTED, 2, 3, 4, 7, 6)
"""Exit codes by severity: the run's is the first of these that occurs. An unsound sketch comes
first, failures that a retry may cure last."""


def most_severe(outcome: Outcome) -> Failure | None:
    """The failure that decides the exit code, if any."""
    return min(outcome.failures, key=lambda failure: _gravity(failure.error), default=None)


def for_report(outcome: Outcome) -> Outcome:
    """`outcome` with a failure for each unsound sketch: no run that shows one succeeds. Failures
    caused by the limit on open files say so."""
    failures = [Failure(failed.query, with_limit(failed.error)) for failed in outcome.failures]
    reported = {f.query for f in outcome.failures if isinstance(f.error, UnsoundSketchError)}
    for result in outcome.results:
        if isinstance(result, VerifyResult) and result.query not in reported:
            error = _unsoundness(result)
            failures += [] if error is None else [Failure(result.query, error)]
    return replace(outcome, failures=tuple(failures))


def _unsoundness(result: VerifyResult) -> UnsoundSketchError | None:
    if not result.covers:
        names = ("NULL" if f == result.total else str(f) for f in result.missing)
        message = (
            f"The sketch of query `{result.query}` is too small on "
            f"`{result.table}.{result.attribute}`; it lacks the ranges {', '.join(names)}"
        )
    elif result.results_equal is False:
        message = f"Query `{result.query}` has a different result with its sketch than without"
    elif result.answer_equal is False:
        message = (
            f"The materialized result of query `{result.query}` differs from the result of "
            "the query"
        )
    else:
        return None
    hint = "recapture it with `impctl capture`, and please report this"
    return UnsoundSketchError(message, hint=hint)


def _gravity(error: ImpctlError) -> int:
    return GRAVITY.index(error.exit_code) if error.exit_code in GRAVITY else 0


def problems_error(findings: Iterable[Finding]) -> ImpctlError | None:
    """The error of a run that found problems, with the most severe exit code; None without."""
    problems = [finding for finding in findings if finding.level is Level.PROBLEM]
    if not problems:
        return None
    worst = min(problems, key=lambda finding: GRAVITY.index(finding.exit_code))
    about = f"{worst.area} `{worst.subject}`" if worst.area != worst.subject else worst.area
    message = f"Found a problem with {about}"
    if len(problems) > 1:
        message = f"Found {len(problems)} problems; the most serious one is about {about}"
    return ProblemsFoundError(message, hint=worst.fix, exit_code=worst.exit_code)


def is_pending(outcome: Outcome) -> bool:
    """Whether a dry run found something to do."""
    return any(map(_is_to_do, outcome.results))


def _is_to_do(result: Result) -> bool:
    match result:
        case PlanResult():
            return result.action not in ("none", REFUSED)
        case DueResult():
            return result.due
        case MaintainResult():
            return result.foreseen and result.action != "none"
        case CaptureResult():
            return result.foreseen and result.stored in ("none", "stale", "uneven")
        case _:
            return False


# Metrics in Prometheus's text format (version 0.0.4). Law: one `# HELP` and `# TYPE` per name, with
# all its samples; counters end in `_total`; units are seconds and bytes. A failed query has
# `impctl_maintain_success` 0.


def maintain_metrics(outcome: Outcome, ended_at: float) -> str:
    """What a run of `maintain` did, per query, failed queries included."""
    results = [result for result in outcome.results if isinstance(result, MaintainResult)]
    success = {result.query: 1.0 for result in results}
    seconds = {result.query: result.elapsed_ms / 1000 for result in results}
    recaptured = {result.query: float(result.action == "recapture") for result in results}
    changes = {r.query: float(r.changes) for r in results if r.changes is not None}
    failed = {failure.query: 0.0 for failure in outcome.failures if failure.query is not None}
    ranges: dict[str, float] = {}
    for result in results:
        ranges[result.query] = ranges.get(result.query, 0.0) + result.total
    gauges = (
        ("maintain_success", "1 if the last run succeeded", success | failed),
        ("maintain_duration_seconds", "Duration of the last run", seconds),
        ("maintain_changes", "Changed rows of the last run, unless it was a recapture", changes),
        ("maintain_recaptured", "1 if the last run recaptured", recaptured),
        ("sketch_ranges", "Ranges in the query's sketches", ranges),
        ("maintain_failures", "Failures of the last run", {"": float(len(outcome.failures))}),
        ("maintain_timestamp_seconds", "End of the last run", {"": ended_at}),
    )
    return "".join(_metric(name, "gauge", meaning, samples) for name, meaning, samples in gauges)


def gain_metrics(outcome: Outcome) -> str:
    """What sketches skipped and cost, per query; all-time sums are counters."""
    results = [result for result in outcome.results if isinstance(result, GainResult)]
    is_whole = all(result.since is None for result in results)
    kind, end = ("counter", "_total") if is_whole else ("gauge", "")
    figures: tuple[tuple[str, str, Callable[[GainResult], float]], ...] = (
        ("uses", "Uses of the query", lambda r: r.uses),
        ("used", "Uses with its sketches", lambda r: r.used),
        ("kept_answers", "Answers from the materialized result", lambda r: r.kept_answers),
        ("left_out_files", "Files skipped", lambda r: r.files_plain - r.files),
        ("left_out_rows", "Rows in skipped files", lambda r: r.rows_plain - r.rows),
        ("left_out_bytes", "Bytes of skipped files", lambda r: r.bytes_left_out),
        ("read_bytes", "Bytes of files read", lambda r: r.bytes),
        ("upkeep_runs", "Captures and runs of maintain", lambda r: r.upkeep_runs),
        ("upkeep_seconds", "Time of captures and runs of maintain", lambda r: r.upkeep_ms / 1000),
    )
    last_uses = {r.query: r.last_use.timestamp() for r in results if r.last_use is not None}
    return "".join(
        _metric(f"{name}{end}", kind, meaning, {r.query: float(value(r)) for r in results})
        for name, meaning, value in figures
    ) + _metric("last_use_timestamp_seconds", "gauge", "Time of the last use", last_uses)


def _metric(name: str, kind: str, meaning: str, samples: Mapping[str, float]) -> str:
    """A metric with its samples by query; those of the whole run have an empty name."""
    lines = [f"# HELP impctl_{name} {meaning}", f"# TYPE impctl_{name} {kind}"]
    for query, value in samples.items():
        label = f'{{query="{_escaped(query)}"}}' if query else ""
        lines.append(f"impctl_{name}{label} {value!r}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""How a run ends: which failure decides, and its results as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct, field
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

# Which failure decides how a run ends, and unsound sketches as failures. Law: a result that shows
# an unsound sketch never ends a run well, whichever use case it came from.

GRAVITY = (5, 1, INTERRUPTED, 2, 3, 4, 7, 6)
"""Exit codes by severity: the run's is the first of these that occurs. An unsound sketch comes
first, failures that a retry may cure last."""


def most_severe(outcome: Outcome) -> Failure | None:
    """The failure that decides the exit code, if any."""
    return min(outcome.failures, key=lambda failure: _gravity(failure.error), default=None)


def for_report(outcome: Outcome) -> Outcome:
    """`outcome` with a failure for every sketch that a check found unsound, so that no run ends
    well with one. Failures caused by the limit on open files say so."""
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
    problems = [finding for finding in findings if finding.level == Level.PROBLEM]
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
    return any(_is_to_do(result) for result in outcome.results)


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


# Results as the text that Prometheus reads from a file (its exposition format, version 0.0.4).
# Law: one `# HELP` and `# TYPE` per name, all of its samples together; counters end in `_total`,
# units are seconds and bytes. What failed is told as 0 of `impctl_maintain_success`.


class _Metric(Struct):
    name: str
    kind: str
    meaning: str
    samples: dict[str, float] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.meaning}"
        yield f"# TYPE {self.name} {self.kind}"
        for query, value in self.samples.items():
            label = f'{{query="{_escaped(query)}"}}' if query else ""
            yield f"{self.name}{label} {value!r}"


def maintain_metrics(outcome: Outcome, at: float) -> str:
    """What a run of `maintain` did, per query, failed queries included."""
    success = _Metric("impctl_maintain_success", "gauge", "1 if the last run succeeded")
    took = _Metric("impctl_maintain_duration_seconds", "gauge", "Duration of the last run")
    changes = _Metric(
        "impctl_maintain_changes",
        "gauge",
        "Changed rows of the last run, unless it was a recapture",
    )
    recaptured = _Metric("impctl_maintain_recaptured", "gauge", "1 if the last run recaptured")
    ranges = _Metric("impctl_sketch_ranges", "gauge", "Ranges in the query's sketches")
    for result in outcome.results:
        if isinstance(result, MaintainResult):
            success.samples[result.query] = 1.0
            took.samples[result.query] = result.elapsed_ms / 1000
            if result.changes is not None:
                changes.samples[result.query] = float(result.changes)
            recaptured.samples[result.query] = float(result.action == "recapture")
            ranges.samples[result.query] = ranges.samples.get(result.query, 0.0) + result.total
    for failure in outcome.failures:
        if failure.query is not None:
            success.samples[failure.query] = 0.0
    failed = _Metric("impctl_maintain_failures", "gauge", "Failures of the last run")
    failed.samples[""] = float(len(outcome.failures))
    last = _Metric("impctl_maintain_timestamp_seconds", "gauge", "End of the last run")
    last.samples[""] = at
    return _text((success, took, changes, recaptured, ranges, failed, last))


def gain_metrics(outcome: Outcome) -> str:
    """What sketches skipped and cost, per query; all-time sums are counters."""
    results = [result for result in outcome.results if isinstance(result, GainResult)]
    is_whole = all(result.since is None for result in results)
    kind, end = ("counter", "_total") if is_whole else ("gauge", "")
    wanted: tuple[tuple[str, str, Callable[[GainResult], float]], ...] = (
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
    metrics = [
        _Metric(f"impctl_{name}{end}", kind, meaning, {r.query: float(value(r)) for r in results})
        for name, meaning, value in wanted
    ]
    last = _Metric("impctl_last_use_timestamp_seconds", "gauge", "Time of the last use")
    last.samples = {r.query: r.last_use.timestamp() for r in results if r.last_use is not None}
    return _text((*metrics, last))


def _text(metrics: Iterable[_Metric]) -> str:
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

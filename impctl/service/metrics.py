"""Results as the text that Prometheus reads from a file (its exposition format, version 0.0.4).

Law: one `# HELP` and `# TYPE` per name, all of its samples together; counters end in `_total`,
units are seconds and bytes. What failed is told as 0 of `impctl_maintain_success`.
Out of scope: writing the file (`service.output`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field

from impctl.service.results import GainResult, MaintainResult, Outcome
from impctl.values import dataclass


@dataclass(slots=True)
class _Metric:
    """A name, what it means, and its samples by query."""

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
    """What a run of `maintain` did, per query; queries that failed are told too."""
    success = _Metric("impctl_maintain_success", "gauge", "1 if the last run succeeded")
    took = _Metric("impctl_maintain_duration_seconds", "gauge", "Duration of the last run")
    changes = _Metric(
        "impctl_maintain_changes",
        "gauge",
        "Changed rows of the last run, unless it was a recapture",
    )
    recaptured = _Metric("impctl_maintain_recaptured", "gauge", "1 if the last run recaptured")
    held = _Metric("impctl_sketch_ranges", "gauge", "Ranges in the query's sketches")
    for result in outcome.results:
        if isinstance(result, MaintainResult):
            success.samples[result.query] = 1.0
            took.samples[result.query] = result.elapsed_ms / 1000
            if result.changes is not None:
                changes.samples[result.query] = float(result.changes)
            recaptured.samples[result.query] = float(result.action == "recapture")
            held.samples[result.query] = held.samples.get(result.query, 0.0) + result.total
    for failure in outcome.failures:
        if failure.query is not None:
            success.samples[failure.query] = 0.0
    failed = _Metric("impctl_maintain_failures", "gauge", "Failures of the last run")
    failed.samples[""] = float(len(outcome.failures))
    last = _Metric("impctl_maintain_timestamp_seconds", "gauge", "End of the last run")
    last.samples[""] = at
    return _text((success, took, changes, recaptured, held, failed, last))


def gain_metrics(outcome: Outcome) -> str:
    """What sketches left out and cost, per query; sums of all time are counters."""
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

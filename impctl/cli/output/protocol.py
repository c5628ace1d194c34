"""What a renderer must be able to show: one method per result type, then the end of the run.

Law: `show` is the only dispatch over results and is exhaustive, so that no renderer can miss a new
result type.
"""

from __future__ import annotations

from typing import Protocol, assert_never

from impctl.service.results import (
    ApplyResult,
    CaptureResult,
    ChangesResult,
    CheckResult,
    ClusterResult,
    DueResult,
    ExplainResult,
    Failure,
    Finding,
    GainResult,
    GcResult,
    GenerateResult,
    MaintainResult,
    PlanResult,
    QueryResult,
    Record,
    RecordComparison,
    Result,
    RewriteResult,
    SimulateResult,
    StartedResult,
    StatusResult,
    VerifyResult,
    WhyResult,
    WithoutResult,
    WrittenResult,
)


class Output(Protocol):
    """Shows the results of one run, then how it ended; `end` is called once, last."""

    def check(self, result: CheckResult) -> None: ...
    def capture(self, result: CaptureResult) -> None: ...
    def apply(self, result: ApplyResult) -> None: ...
    def cluster(self, result: ClusterResult) -> None: ...
    def gain(self, result: GainResult) -> None: ...
    def maintain(self, result: MaintainResult) -> None: ...
    def plan(self, result: PlanResult) -> None: ...
    def due(self, result: DueResult) -> None: ...
    def simulate(self, result: SimulateResult) -> None: ...
    def rewrite(self, result: RewriteResult) -> None: ...
    def query(self, result: QueryResult) -> None: ...
    def changes(self, result: ChangesResult) -> None: ...
    def why(self, result: WhyResult) -> None: ...
    def without(self, result: WithoutResult) -> None: ...
    def status(self, result: StatusResult) -> None: ...
    def explain(self, result: ExplainResult) -> None: ...
    def finding(self, result: Finding) -> None: ...
    def started(self, result: StartedResult) -> None: ...
    def verify(self, result: VerifyResult) -> None: ...
    def generate(self, result: GenerateResult) -> None: ...
    def record(self, result: Record) -> None: ...
    def comparison(self, result: RecordComparison) -> None: ...
    def written(self, result: WrittenResult) -> None: ...
    def gc(self, result: GcResult) -> None: ...

    def finished(self, result: Result, place: str) -> bool:
        """Show a result and the progress while the run continues; return whether it was shown."""

    def document(self, text: str) -> None:
        """Show a text that is a whole document, unchanged."""

    def end(
        self,
        warnings: tuple[str, ...],
        failures: tuple[Failure, ...],
        decisive: Failure | None,
        note: str = "",
    ) -> None:
        """Show warnings and failures; `decisive` gave the exit code, `note` is for people."""


def show(output: Output, result: Result) -> None:  # noqa: C901  # one case per type of result
    """Call the output's method for the type of the result."""
    match result:
        case CheckResult():
            output.check(result)
        case CaptureResult():
            output.capture(result)
        case ApplyResult():
            output.apply(result)
        case ClusterResult():
            output.cluster(result)
        case GainResult():
            output.gain(result)
        case MaintainResult():
            output.maintain(result)
        case PlanResult():
            output.plan(result)
        case DueResult():
            output.due(result)
        case SimulateResult():
            output.simulate(result)
        case RewriteResult():
            output.rewrite(result)
        case QueryResult():
            output.query(result)
        case ChangesResult():
            output.changes(result)
        case WhyResult():
            output.why(result)
        case WithoutResult():
            output.without(result)
        case StatusResult():
            output.status(result)
        case ExplainResult():
            output.explain(result)
        case Finding():
            output.finding(result)
        case StartedResult():
            output.started(result)
        case VerifyResult():
            output.verify(result)
        case GenerateResult():
            output.generate(result)
        case Record():
            output.record(result)
        case RecordComparison():
            output.comparison(result)
        case WrittenResult():
            output.written(result)
        case GcResult():
            output.gc(result)
        case _:
            assert_never(result)

"""One result of each type, with values that are hard to show."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

from impctl.bench.record import Cell, CellPlace, Chart, Difference, Figure, Metric, MetricChange
from impctl.errors import Location
from impctl.service.results import (
    ApplyResult,
    Area,
    CandidateEntry,
    CaptureResult,
    ChangesResult,
    CheckResult,
    DueResult,
    ExplainResult,
    Finding,
    GcEntry,
    GcResult,
    GenerateResult,
    Level,
    MaintainResult,
    MaintainStep,
    PendingEntry,
    PlanEntry,
    PlannedChange,
    PlanResult,
    QueryResult,
    Record,
    RecordComparison,
    RecordedRuns,
    Result,
    RewriteResult,
    RunEntry,
    SimulatedSetting,
    SimulateResult,
    SketchEntry,
    StartedResult,
    StatusResult,
    VerifiedEntry,
    VerifyResult,
    WhyEntry,
    WhyResult,
    WithoutResult,
    WrittenResult,
)

NOON = datetime(2026, 1, 31, 12, 0, 30, tzinfo=UTC)
PRICE = SketchEntry("sales", "price", (2, 3), 4)
BRAND_UNSAFE = CandidateEntry("sales", "brand", True, False, "grouped by it, but not asked for")
PRICE_CHOSEN = CandidateEntry("sales", "price", True, True, "a group only grows (price > 0)")


def _cell(changes: int, maintain: float, groups: int) -> Cell:
    metrics = {"maintain_ms": maintain, "recapture_ms": 812.0, "recapture_ratio": 812.0 / maintain}
    labels = {"groups": groups, "changes": changes, "share": changes / 1e6}
    result = {name: Metric.of([value]) for name, value in metrics.items()}
    return Cell("groups", labels, result, covers=True, slack=0)


RECORD = Record(
    suite="micro",
    title="Micro-benchmarks",
    scale=0.05,
    repeat=3,
    seed=1,
    started="2026-01-01T00:00:00+00:00",
    elapsed_s=75.0,
    noise=0.04,
    machine={"cpu": "x"},
    figures=(
        Figure(
            "groups",
            "Number of groups",
            "about",
            Chart("changes", ("maintain_ms", "recapture_ms"), ("groups",), ("x", "y")),
            "Up to 1,000 changed rows maintaining wins by two to three orders of magnitude.",
            "section 8.3.1",
        ),
        Figure("skipping", "What a sketch saves", "", Chart("layout", ("plain_ms", "rows_share"))),
    ),
    cells=(
        *(_cell(1000, 2.1, 50), _cell(100000, 1624.0, 50)),
        *(_cell(1000, 2.5, 500000), _cell(100000, 81.2, 500000)),
        *(
            Cell(
                "skipping",
                {"layout": layout},
                {"plain_ms": Metric.of([1500.0]), "rows_share": Metric.of([share])},
                equal=True,
            )
            for layout, share in (("sorted", 0.0625), ("not sorted", 1.0))
        ),
    ),
)

# fmt: off
EXAMPLES: dict[str, Result] = {
    "check": CheckResult("q_top", True, "exact", "every operator is maintained", (PRICE_CHOSEN,)),
    "capture": CaptureResult(
        query="q_top", action="capture", sketches=(PRICE,), versions={"sales": 0}, mode="exact",
        elapsed_ms=1234.5, spark_ms=900.0, considered=(PRICE_CHOSEN, BRAND_UNSAFE),
        assumptions=("sales.price > 0",),
    ),
    "apply": ApplyResult(name="s8", table="sales", version=1, inserted=1, deleted=0, updated=0),
    "maintain": MaintainResult(
        query="q_top", table="sales", attribute="price", total=4, action="exact",
        reason_code="change_feed", reason="the change was carried through the circuit",
        since={"sales": 0}, versions={"sales": 1}, added=(1,), changes=1, elapsed_ms=2.345,
        read_ms=1.5, engine_ms=0.25, commit_ms=0.5,
        steps=(MaintainStep("exact", {"sales": 1}, (1,), (), 1, 2.0),),
    ),
    "due": DueResult(
        query="q_top", trigger="fresh_within 10m, rows 10000", due=False, why="fresh_within 10m",
        due_at=NOON, due_by=NOON, start_at=NOON.replace(minute=0, second=0, hour=11), pending=True,
        rows=1010, oldest_at=NOON.replace(hour=10), cost_ms=1234.5, margin=1.5,
    ),
    "simulate": SimulateResult(
        source="the histories of the tables", since=NOON, until=NOON.replace(day=30, month=3),
        look_s=5.0, commits={"sales": 8_441, "brands": 1}, rows=659_699,
        costs_by={"q_top": "runs", "q_brand": "runs", "q_new": "priors", "q_cap": "capture"},
        settings=(
            SimulatedSetting(
                setting="as it is", present=True, disk_bytes=None, trigger=None, runs=8_400,
                steps=33_000, work_ms=942_000.0, age_s=2.64, age_99_s=5.1, age_worst_s=10.4, late=0,
                state_bytes=116_000_000, over_budget=False, reads=0.0, conversions=0,
            ),
            SimulatedSetting(
                setting="10 MB, use", present=False, disk_bytes=10_000_000, trigger="use", runs=0,
                steps=0, work_ms=0.0, age_s=None, age_99_s=None, age_worst_s=4_838_400.0, late=2,
                state_bytes=20_200_000, over_budget=True, reads=77_912.24, conversions=12,
            ),
        ),
        recorded=RecordedRuns(
            since=NOON, runs=8_000, steps=33_000, work_ms=1_000_000.0, model_runs=8_400,
            model_steps=33_000, model_work_ms=942_000.0, runs_off=0.05, steps_off=0.0,
            work_off=-0.058,
        ),
    ),
    "plan": PlanResult(
        query="q_top", action="exact", by="engine", reason_code="incremental",
        reason="every operator is maintained", policy="auto", since={"sales": 0},
        versions={"sales": 2}, pending=(PlannedChange("sales", 0, 2, 1000, 3, 45_678),),
        maintain_ms=2.345, maintain_runs=12, recapture_ms=812.0, recapture_runs=1,
    ),
    "rewrite": RewriteResult(
        query="q_top", sql="SELECT brand FROM sales WHERE price >= 601", sketches=(PRICE,),
        versions={"sales": 1}, files_kept=2, files_total=3, intervals=("sales.price >= 601",),
    ),
    "query": QueryResult(
        query="q_top",
        answer=pa.table(
            {
                "brand": ["Apple", None], "rev": [Decimal("5074.10"), Decimal("6194.00")],
                "day": [date(2026, 1, 31), None], "share": [float("nan"), -0.5],
            },
        ),
        versions={"sales": 1}, files_kept=2, files_total=3, elapsed_ms=120.0, action="exact",
        reason="1 change",
    ),
    "changes": ChangesResult(
        query="q_top",
        answer=pa.table(
            {
                "_change": ["delete", "insert"], "_copies": [1, 2], "_sure": [True, False],
                "brand": ["Apple", None], "rev": [Decimal("5074.10"), Decimal("6194.00")],
            },
        ),
        since={"sales": 1}, versions={"sales": 3}, elapsed_ms=12.0, by="engine",
        by_reason="no result is stored for these versions, so both results were computed",
    ),
    "why": WhyResult(
        query="reach", row={"n": 17, "at": datetime(2026, 1, 31, 12, 0), "name": None},
        claim="smallest",
        rows=(
            WhyEntry("links", {"src": 1, "dst": 4, "cost": Decimal("1.50")}),
            WhyEntry("links", {"src": 4, "dst": 17, "cost": None}),
        ),
        row_count=3, lineage=12, limit=2, versions={"links": 3}, files_kept=1, files_total=4,
        elapsed_ms=12.0, action="none", reason="",
    ),
    "without": WithoutResult(
        query="reach",
        answer=pa.table({"_change": ["delete", "insert"], "_copies": [1, 2], "n": [17, None]}),
        without={"links": ("src = 4",)}, removed={"links": 2}, versions={"links": 3}, files_kept=1,
        files_total=4, elapsed_ms=12.0, action="none", reason="",
    ),
    "status": StatusResult(
        query="q_top", sketches=(SketchEntry("sales", "price", (1, 2, 3, 4), 4),),
        versions={"sales": 1}, pending_versions={"sales": 2}, stale=True, mode="exact",
        policy="auto", state_bytes=1234, last_action="exact", last_reason="1 change",
        stale_reason="the table has newer versions", sketch_bytes=2,
        pending=(
            PendingEntry("sales", 1, 2, 3, 1000, 2048),
            PendingEntry("brands", 0, 1, None, None, None),
        ),
        runs=(
            RunEntry("exact", "change_feed", "1 change", NOON, 2.35, 1, {"sales": 1}),
            RunEntry("capture", "requested", "capture was requested", NOON, 1200, 0, {"sales": 0}),
        ),
        verified=VerifiedEntry(True, 1, NOON, {"sales": 1}),
    ),
    "explain": ExplainResult(
        query="q_top", mode="exact", reason="every operator is maintained", policy="auto",
        plan=(
            PlanEntry(depth=0, operator="select", detail="SUM(price) > 5000", how="exact"),
            PlanEntry(
                depth=1, operator="scan", detail="sales", how="exact",
                place=Location("w.yaml", 12, 9), state_bytes=0, pushed=("reads 3 of 5 columns",),
            ),
        ),
        attributes=(PRICE_CHOSEN,), state_bytes=2350,
    ),
    "finding": Finding(
        Area.TABLE, "sales", "change_feed", Level.WARNING, "The change feed is off", "turn it on",
    ),
    "started": StartedResult("w.yaml", ("sales",), ("q_top",), ("impctl check w.yaml",)),
    "verify": VerifyResult(
        query="q_top", table="sales", attribute="price", total=4, covers=True, slack=1, missing=(),
        extra=(0,), results_equal=True, versions={"sales": 1},
    ),
    "generate": GenerateResult("sales", "demo/sales", 7, 0),
    "record": RECORD,
    "comparison": RecordComparison(
        suite="micro", noise=0.21,
        changes=(
            MetricChange("groups", {"groups": 50}, "maintain_ms", 2.1, 4.2, 2.0, Difference.SLOWER),
            MetricChange("groups", {"groups": 50}, "recapture_ms", 8.0, 8.1, 1.01, Difference.SAME),
        ),
        only_old=(CellPlace("groups", {"groups": 9}),), only_new=(),
        differences=("cpu: x, then y",),
    ),
    "written": WrittenResult("record", "r.json"),
    "gc": GcResult(
        "demo/.impctl", 8,
        (
            GcEntry("versions", "q_top", 12, 3100, True), GcEntry("partitions", "", 1, 812, True),
            GcEntry("file", "demo/.impctl/state/3f2a.arrow", 1, 5_200_000, True),
            GcEntry("folder", "demo/.impctl-bench-x1", 1, 1234, False),
        ),
        5_203_912,
    ),
}
# fmt: on

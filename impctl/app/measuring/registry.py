"""The measures that a figure of a suite may name: the one table of them.

Law: a measure is a function from a ground to cells that keeps the law of `app.measuring.ground`;
its name in a suite file is its key here, and `docs/records/measures.md` describes it. Every label
and metric that its cells may have is listed, so that a chart with a misspelt name is refused before
hours are measured for it.
Out of scope: what each does (`app.measuring.kinds`), drawing (`bench.report_chart`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from impctl.app.measuring.ground import Ground
from impctl.app.measuring.kinds.answer_ways import measure_answers
from impctl.app.measuring.kinds.capture_cost import measure_capture
from impctl.app.measuring.kinds.deletions import measure_deletions
from impctl.app.measuring.kinds.engine_cost import measure_engine
from impctl.app.measuring.kinds.maintain_cost import measure_maintain
from impctl.app.measuring.kinds.memory import measure_memory
from impctl.app.measuring.kinds.mixed import measure_mixed
from impctl.app.measuring.kinds.peer_cost import measure_peers
from impctl.app.measuring.kinds.query_cost import measure_query
from impctl.app.measuring.kinds.recursion_cost import measure_recursion
from impctl.app.measuring.kinds.rewritten_cost import measure_rewritten
from impctl.app.measuring.kinds.rivals import measure_rivals
from impctl.app.measuring.kinds.state_cost import measure_state
from impctl.app.measuring.kinds.state_deadlines import measure_deadlines
from impctl.app.measuring.kinds.state_phases import measure_phases
from impctl.app.measuring.kinds.state_processes import measure_processes
from impctl.app.measuring.kinds.strategies import measure_strategies
from impctl.app.measuring.kinds.tree_cost import measure_trees
from impctl.app.measuring.kinds.ways import measure_ways
from impctl.bench.record import Cell
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Drawable:
    """Labels that a measure adds to those of the case, and its metrics; `operators` says that
    there are more, named after operators (`join_bytes`)."""

    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    operators: bool = False

    def has(self, metric: str) -> bool:
        """May a cell have this metric?"""
        return metric in self.metrics or (self.operators and metric.endswith("_bytes"))


@dataclass(frozen=True, slots=True)
class Measure:
    """What a figure does with each case.

    `labelled` are options whose every value has cells of its own, which are labelled with it, or
    only adds a metric to one: not those of which a cell shows the effect of several, as `changes`
    of `memory`. A fingerprint leaves them out.
    """

    run: Callable[[Ground], Iterator[Cell]]
    labelled: tuple[str, ...]
    drawable: Drawable


MEASURES: Mapping[str, Measure] = {
    "answers": Measure(
        measure_answers,
        (),
        Drawable(
            (),
            (
                *("state_ms", "by_engine_ms", "sketch_ms", "plain_ms", "maintain_ms"),
                *("view_ms", "view_upkeep_ms", "duckdb_plain_ms", "duckdb_sketch_ms"),
                "files_share",
            ),
        ),
    ),
    "capture": Measure(
        measure_capture,
        (),
        Drawable((), ("plain_ms", "recapture_ms", "capture_ms", "state_bytes")),
    ),
    "deadlines": Measure(
        measure_deadlines,
        ("bounds",),
        Drawable(("trigger",), ("runs_count", "work_ms", "age_ms", "late_share")),
    ),
    "deletions": Measure(
        measure_deletions,
        ("patterns", "buffers"),
        Drawable(
            ("pattern", "buffer", "updates"),
            ("maintain_ms", "total_ms", "refill_count", "refilled_rows", "state_bytes"),
        ),
    ),
    "engine": Measure(
        measure_engine,
        ("changes",),
        Drawable(("changes",), ("maintain_ms", "yardstick_ms", "yardstick_ratio")),
    ),
    "maintain": Measure(
        measure_maintain,
        ("changes", "shares", "processes"),
        Drawable(
            ("changes", "share", "kind"),
            (
                *("maintain_ms", "read_ms", "engine_ms", "commit_ms"),
                *("recapture_ms", "recapture_ratio", "state_bytes", "duckdb_ms", "process_ms"),
            ),
        ),
    ),
    "memory": Measure(
        measure_memory,
        ("ranges",),
        Drawable(
            ("changes", "ranges"),
            ("state_bytes", "stored_bytes", "process_bytes", "sketch_bytes", "ranges_bytes"),
            operators=True,
        ),
    ),
    "mixed": Measure(
        measure_mixed,
        ("changes", "ratios"),
        Drawable(
            ("ratio", "changes", "strategy"),
            ("total_ms", "update_ms", "query_ms", "maintain_ms", "capture_ms", "operation_ms"),
        ),
    ),
    "peers": Measure(
        measure_peers,
        ("peers", "schemes", "selections", "shares"),
        Drawable(
            ("scheme", "peers", "selection", "share"),
            (
                *("messages_count", "each_count", "sent_bytes", "provenance_bytes"),
                *("state_bytes", "cpu_ms", "dred_ratio"),
            ),
        ),
    ),
    "phases": Measure(
        measure_phases,
        (),
        Drawable(
            ("way", "table"),
            ("maintain_ms", "convert_ms", "total_ms", "stored_bytes"),
        ),
    ),
    "processes": Measure(
        measure_processes,
        ("ways", "budgets"),
        Drawable(
            ("way", "budget"),
            ("process_ms", "cold_ms", "process_bytes", "stored_bytes"),
        ),
    ),
    "query": Measure(
        measure_query,
        (),
        Drawable(
            (),
            (
                *("plain_ms", "sketch_ms", "gain_ratio", "duckdb_plain_ms"),
                *("files_share", "rows_share", "fragments_share"),
            ),
        ),
    ),
    "recursion": Measure(
        measure_recursion,
        ("changes",),
        Drawable(
            ("changes",),
            (
                *("delete_ms", "insert_ms", "delete_wall_ms", "insert_wall_ms", "anew_ms"),
                *("duckdb_answer_ms", "duckdb_cpu_ms", "duckdb_wall_ms", "search_ms", "scipy_ms"),
                *("duckdb_answer_ratio", "duckdb_cpu_ratio", "duckdb_wall_ratio"),
                *("anew_ratio", "search_ratio", "scipy_ratio"),
                *("capture_ms", "state_bytes", "answer_rows"),
            ),
        ),
    ),
    "rewritten": Measure(
        measure_rewritten,
        (),
        Drawable(
            (),
            (
                *("duckdb_plain_ms", "duckdb_sketch_ms", "gain_ratio", "cpu_gain_ratio"),
                *("duckdb_plain_cpu_ms", "duckdb_sketch_cpu_ms", "duckdb_loaded_ms"),
                *("duckdb_loaded_cpu_ms", "loaded_ratio", "loaded_cpu_ratio"),
                *("rows_share", "files_share", "fragments_share"),
                *("sketched_rows", "answer_rows"),
            ),
        ),
    ),
    "rivals": Measure(
        measure_rivals,
        (),
        Drawable(
            (),
            (
                *("plain_ms", "pruned_ms", "sketch_ms", "view_ms", "gain_ratio"),
                *("duckdb_plain_ms", "duckdb_sketch_ms", "upkeep_ms", "view_upkeep_ms"),
                *("files_share", "bytes_share", "bytes_ratio"),
            ),
        ),
    ),
    "state": Measure(
        measure_state,
        ("budgets", "come", "deletes", "expected", "expected_shares", "ways"),
        Drawable(
            ("way", "budget", "share", "deletes", "come", "expected", "expected_share"),
            ("capture_ms", "maintain_ms", "total_ms", "stored_bytes", "state_bytes"),
        ),
    ),
    "strategies": Measure(
        measure_strategies,
        ("batches",),
        Drawable(
            ("batch",),
            ("maintain_ms", "per_update_ms", "step_ms", "read_ms", "engine_ms", "commit_ms"),
        ),
    ),
    "trees": Measure(
        measure_trees,
        ("lives",),
        Drawable(
            ("lambda", "part"),
            (
                *("tree_ms", "index_ms", "duckdb_ms", "index_ratio", "duckdb_ratio"),
                *("capture_ms", "index_capture_ms", "state_bytes", "index_state_bytes"),
                *("process_bytes", "index_process_bytes", "joined_rows"),
                *("touched_count", "flips_count", "pairs_count", "growth_share", "regret_share"),
                *("expected_ms", "index_expected_ms"),
            ),
        ),
    ),
    "ways": Measure(
        measure_ways,
        (),
        Drawable(
            ("way",),
            ("files_count", "wall_ms", "cpu_ms", "gain_ratio", "cpu_gain_ratio"),
        ),
    ),
}

"""Every measure that a figure of a suite may name; `README.md` says what each shows.

Every label and metric that its cells may have is listed, so that a chart with a misspelt name is
refused before hours are measured for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from benchmarks.figures import SuiteCase
from benchmarks.measures.answer_ways import measure_answers
from benchmarks.measures.deletions import measure_deletions
from benchmarks.measures.engine_cost import measure_engine
from benchmarks.measures.maintain_cost import measure_suite_maintain
from benchmarks.measures.memory import measure_memory
from benchmarks.measures.mixed import measure_mixed
from benchmarks.measures.peer_cost import measure_peers
from benchmarks.measures.recursion_cost import measure_recursion
from benchmarks.measures.rewritten_cost import measure_rewritten
from benchmarks.measures.rivals import measure_rivals
from benchmarks.measures.state_cost import measure_phases, measure_state
from benchmarks.measures.state_deadlines import measure_deadlines
from benchmarks.measures.state_processes import measure_processes
from benchmarks.measures.strategies import measure_strategies
from benchmarks.measures.tree_cost import measure_trees
from impctl.bench.record import Cell
from impctl.measure.kinds import MeasuredCase, measure_capture, measure_query, measure_ways


class Drawable(Struct, frozen=True):
    """Labels that a measure adds to those of the case, and its metrics. With `operators` there are
    more metrics, named after operators (`join_bytes`)."""

    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    operators: bool = False

    def has(self, metric: str) -> bool:
        return metric in self.metrics or (self.operators and metric.endswith("_bytes"))


class Measure(Struct, frozen=True):
    """What a figure does with each case. `labelled` are options whose every value has cells
    labelled with it, or only adds a metric to one; not those whose values act together on a cell,
    as `changes` of `memory`. A fingerprint does not include them."""

    run: Callable[[SuiteCase], Iterator[Cell]]
    labelled: tuple[str, ...]
    drawable: Drawable


def _without_options(
    measure: Callable[[MeasuredCase], Iterator[Cell]],
) -> Callable[..., Iterator[Cell]]:
    def run(case: SuiteCase) -> Iterator[Cell]:
        case.only()
        return measure(case)

    return run


MEASURES: Mapping[str, Measure] = {
    "capture": Measure(
        _without_options(measure_capture),
        (),
        Drawable((), ("plain_ms", "recapture_ms", "capture_ms", "state_bytes")),
    ),
    "maintain": Measure(
        measure_suite_maintain,
        ("changes", "shares", "processes"),
        Drawable(
            ("changes", "share", "kind"),
            (
                *("maintain_ms", "read_ms", "engine_ms", "commit_ms"),
                *("recapture_ms", "recapture_ratio", "state_bytes", "duckdb_ms", "process_ms"),
            ),
        ),
    ),
    "query": Measure(
        _without_options(measure_query),
        (),
        Drawable(
            (),
            (
                *("plain_ms", "sketch_ms", "gain_ratio", "duckdb_plain_ms"),
                *("files_share", "rows_share", "fragments_share"),
            ),
        ),
    ),
    "ways": Measure(
        _without_options(measure_ways),
        (),
        Drawable(("way",), ("files_count", "wall_ms", "cpu_ms", "gain_ratio", "cpu_gain_ratio")),
    ),
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
        Drawable(("way", "table"), ("maintain_ms", "convert_ms", "total_ms", "stored_bytes")),
    ),
    "processes": Measure(
        measure_processes,
        ("ways", "budgets"),
        Drawable(("way", "budget"), ("process_ms", "cold_ms", "process_bytes", "stored_bytes")),
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
}

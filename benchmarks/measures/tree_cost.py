"""Measure `trees`: what a change costs a join tree and an index join, on the same rows in memory.

Options: `changes`, changed rows of a step (1,000); `kind` of the stream (`trees
.streams`): both, window or outlived; `changed`, the tables that change (the largest); `share` of a
table that a window holds (0.5) and the column `order` it moves along (`id`); `lives`, cells of
`outlived`, of keys in the column `key` (`id`); `steps`, how many are timed (twice the repeats), in
so many `parts`, each a cell; `most_joined`, joined rows beyond which the index is not run, and
`most_asked`, beyond which DuckDB is not asked for groups that pass; `regret` tells what the query's
own `join` takes; `process` starts `impctl capture` for either way.
Law: after each of the first two steps, before anything is timed, and after the last one the
sketches of all ways are compared (`trees.side_by_side`). `tree_ms` and `index_ms` are
processor times of a step of the engine in turns, `duckdb_ms` the lesser of DuckDB's processor time
and its wall time on all cores. What is not run is named in the note with its joined rows.
Out of scope: reading changes, commits (`maintain`), captures from files (only by `process`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import reduce
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.figures import SuiteCase
from benchmarks.fresh_process import capture_afresh
from benchmarks.trees.side_by_side import INDEX_MS, TREE_MS, Bounds, SideBySide
from benchmarks.trees.streams import Stream, Tables, outlived, there_and_back, window
from benchmarks.trees.ways import Choices, choices_of
from impctl.bench.record import Cell, Label, Metric
from impctl.compile.compile import MaintenancePlan
from impctl.measure.kinds import single
from impctl.measure.scratch import changed_table, scratch_copy, worse_of
from impctl.service.prepare import prepare
from impctl.types import TableName
from impctl.workload.models import JoinStrategy

BOTH, WINDOW, OUTLIVED = "both", "window", "outlived"
_MOST_JOINED = 5_000_000
_MOST_ASKED = 1_000_000_000
"""DuckDB finds the groups that pass by the query itself, whose joined rows it may have to make."""
_ANEW_MS = "duckdb_ms"
_WORK = ("touched_count", "flips_count", "pairs_count")
_ASKED_ANEW = 3
"""Times that DuckDB is timed at most: once takes as long as many steps."""


class _Options(Struct, frozen=True, kw_only=True):
    changes: int
    kind: str
    changed: tuple[TableName, ...]
    share: float
    order: str
    key: str
    lives: tuple[int, ...]
    steps: int
    parts: int
    bounds: Bounds
    regret: bool
    process: bool


def measure_trees(case: SuiteCase) -> Iterator[Cell]:
    """A cell per part of the stream, for each number of lives."""
    case.only(
        *("changes", "kind", "changed", "share", "order", "key", "lives"),
        *("steps", "parts", "most_joined", "most_asked", "regret", "process"),
    )
    (share,) = case.numbers("share", (0.5,))
    (kind,) = case.choices("kind", (BOTH, WINDOW, OUTLIVED), (BOTH,))
    options = _Options(
        changes=case.whole_number("changes", 1000),
        kind=kind,
        changed=case.texts("changed"),
        share=share,
        order=case.text("order", "id"),
        key=case.key(),
        lives=case.whole_numbers("lives", (1,)),
        steps=case.whole_number("steps", 2 * case.repeat),
        parts=case.whole_number("parts", 1),
        bounds=Bounds(
            case.whole_number("most_joined", _MOST_JOINED),
            case.whole_number("most_asked", _MOST_ASKED),
        ),
        regret=case.flag("regret"),
        process=case.flag("process"),
    )
    if kind == WINDOW and not 0 < share < 1:
        raise case.refuse("share", "above 0 and below 1")
    if kind == OUTLIVED and len(options.changed) != 2:
        raise case.refuse("changed", "the table whose rows live longer, and its partner's")
    if options.parts > options.steps:
        raise case.refuse("parts", "no more than there are steps")
    return _cells(case, options)


def _cells(case: SuiteCase, options: _Options) -> Iterator[Cell]:
    case.step(f"reading the tables of {case.query.name}")
    choices = choices_of(case.ctx, case.query)
    tables = choices.tables()
    chosen = choices.way() if options.regret else None
    for lives in options.lives:
        labels: dict[str, Label] = {"lambda": lives} if options.kind == OUTLIVED else {}
        stream = _stream(case, options, choices, tables, lives)
        beside = SideBySide.opened(choices, stream, options.bounds, case.step)
        with closing(beside):
            yield from _measured(case, options, beside, labels, chosen)


def _stream(
    case: SuiteCase, options: _Options, choices: Choices, tables: Tables, lives: int
) -> Stream:
    largest = changed_table(case.ctx.tables, choices.prepared.tables)
    changed = options.changed or (largest,)
    unknown = [name for name in changed if name not in tables]
    if unknown:
        raise case.refuse("changed", f"tables that query `{case.query.name}` reads")
    match options.kind:
        case "window":
            share, order = options.share, options.order
            return window(tables, changed, options.changes, order=order, share=share)
        case "outlived":
            size, seed = options.changes, case.seed
            return outlived(tables, changed, size, key=options.key, lives=lives, seed=seed)
    return there_and_back(tables, changed, options.changes, case.seed)


def _measured(
    case: SuiteCase,
    options: _Options,
    beside: SideBySide,
    labels: Mapping[str, Label],
    chosen: MaintenancePlan | None,
) -> Iterator[Cell]:
    """The cells of one stream; `taken` is the way of the query's own `join`, where it is asked."""
    checks = []
    for _ in range(2):
        case.step(f"comparing the sketches of {case.query.name}")
        beside.step()
        checks.append(beside.checked())
    again = beside.asked_anew(min(case.repeat, _ASKED_ANEW))
    case.step(f"timing {options.steps} steps of {case.query.name}")
    before = beside.tree.work
    steps = [beside.step() for _ in range(options.steps)]
    work = [now - then for now, then in zip(beside.tree.work, before, strict=True)]
    checks.append(beside.checked())
    notes = beside.notes if chosen is None else [_taken(case, chosen), *beside.notes]
    shared = {**_sizes(beside), **_peaks(case, options, beside), **_expected(chosen)}
    changed = max(sum(step.rows for step, _ in steps), 1)
    shared |= {name: count / changed for name, count in zip(_WORK, work, strict=True)}
    growth = _growth([times[TREE_MS] for _, times in steps])
    for part in range(options.parts):
        ends = [index * options.steps // options.parts for index in (part, part + 1)]
        metrics = _times([times for _, times in islice(steps, *ends)], again)
        part_labels = {**labels, "part": part + 1} if options.parts > 1 else labels
        reported = shared if chosen is None else {**shared, **_regret(chosen, metrics)}
        if 1 < options.parts == part + 1:
            reported = {**reported, **growth}
        yield case.cell(
            {**metrics, **single(reported)},
            part_labels,
            checked=reduce(worse_of, checks),
            note="; ".join(notes),
        )


def _times(steps: Sequence[Mapping[str, float]], again: Sequence[float]) -> dict[str, Metric]:
    """Medians, and how many times as long the others take."""
    ran = [name for name in steps[0] if all(name in times for times in steps)]
    result = {name: Metric.of([times[name] for times in steps]) for name in ran}
    if again:
        result[_ANEW_MS] = Metric.of(again)
    for other, ratio in ((INDEX_MS, "index_ratio"), (_ANEW_MS, "duckdb_ratio")):
        if other in result and result[TREE_MS].low > 0:
            result[ratio] = Metric.quotient(result[other], result[TREE_MS])
    return result


def _sizes(beside: SideBySide) -> dict[str, float]:
    tree, index = beside.tree, beside.index
    result: dict[str, float] = {"state_bytes": tree.state_bytes, "capture_ms": tree.capture_ms}
    if index is not None:
        result |= {"index_state_bytes": index.state_bytes, "index_capture_ms": index.capture_ms}
    if beside.joined is not None:
        result["joined_rows"] = beside.joined
    return result


def _peaks(case: SuiteCase, options: _Options, beside: SideBySide) -> dict[str, float]:
    """The peak memory of a capture in a process of its own, of the ways that were run."""
    if not options.process:
        return {}
    joins = {"process_bytes": JoinStrategy.TREE}
    if beside.index is not None:
        joins["index_process_bytes"] = JoinStrategy.INDEX
    result: dict[str, float] = {}
    tables = prepare(case.ctx, case.query).tables
    for name, join in joins.items():
        with scratch_copy(case.ctx, tables) as scratch:
            result[name] = capture_afresh(scratch, replace(case.query, join=join)).peak_bytes
    return result


def _growth(times: Sequence[float]) -> dict[str, float]:
    """By how much the mean of the last tenth of the steps is above that of the first."""
    tenth = max(len(times) // 10, 1)
    first, last = statistics.fmean(times[:tenth]), statistics.fmean(times[-tenth:])
    return {"growth_share": last / first - 1.0} if first > 0 else {}


def _taken(case: SuiteCase, way: MaintenancePlan) -> str:
    """What the query's own `join` takes, and why where it is a choice."""
    what = "the tree" if way.has_tree else "the index join"
    why = "" if way.trees is None else f": {way.trees.reason}"
    return f"`join: {case.query.join}` chooses {what}{why}"


def _expected(chosen: MaintenancePlan | None) -> dict[str, float]:
    """The basis of the choice of the query's own `join`, if it is one."""
    choice = None if chosen is None else chosen.trees
    if choice is None or choice.estimate is None:
        return {}
    estimate = choice.estimate
    return {"expected_ms": estimate.tree_ms, "index_expected_ms": estimate.index_ms}


def _regret(chosen: MaintenancePlan, metrics: Mapping[str, Metric]) -> dict[str, float]:
    """By how much that is slower than the quicker of both, where both were run."""
    both = [metrics[name].median for name in (TREE_MS, INDEX_MS) if name in metrics]
    if len(both) < 2 or min(both) <= 0:
        return {}
    name = TREE_MS if chosen.has_tree else INDEX_MS
    return {"regret_share": metrics[name].median / min(both) - 1.0}

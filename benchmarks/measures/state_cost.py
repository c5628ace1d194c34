"""Measure `state` and `phases`: what changes cost, by what is stored of a query's state.

`state`: some tables change, each by itself or, with `late`, one after the other. `phases`: tables
change in turn, as if they were cleaned; before the first change of a table it becomes the one that
is expected to change, and a way that uses expectations chooses again (`convert_ms`).
The options of both are in `measures.md`.

Law: every way sees the same changes of equal tables and starts with its own capture; a step is
timed as by `maintain`; sketches are checked against recapture after the last change.
Out of scope: ways (`state.kept_by`), how rows are held back (`state.held_back`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from msgspec import Struct

from benchmarks.figures import SuiteCase
from benchmarks.state.held_back import Change, commit, moving_tables, reduced_copy, share_of_each
from benchmarks.state.kept_by import (
    BOUNDED,
    CHOSEN,
    KEPT,
    READ,
    RECAPTURE,
    WAYS,
    Declared,
    brought_to,
    captured_under,
    expecting,
    recapture_ms,
    step_ms,
    stored_bytes,
)
from impctl.bench.record import Cell, Label, Metric
from impctl.measure.scratch import AgainstRecapture, MeasuredQuery, scratch_copy
from impctl.service.context import Context
from impctl.service.prepare import prepare
from impctl.types import TableName
from impctl.workload.models import QuerySpec

_UNBOUNDED = {KEPT: 1, READ: 0, RECAPTURE: 0}
"""What ways that no budget means anything to come to, as a share of all state."""


class _Options(Struct, frozen=True, kw_only=True):
    tables: tuple[TableName, ...]
    shares: tuple[float, ...]
    late: bool
    deletes: tuple[float, ...]
    come: tuple[int, ...]
    expected: tuple[int, ...]
    expected_shares: tuple[float, ...]
    budgets: tuple[float, ...]
    ways: tuple[str, ...]


class _Setting(Struct, frozen=True):
    """What one cell is about: the changes, and what is expected."""

    shares: tuple[float, ...]
    deletes: float
    come: int
    expected: int
    expected_share: float


class _Run(Struct, frozen=True):
    """One way through the changes."""

    capture_ms: float
    steps: tuple[float, ...]
    stored: int
    state: int
    rows: tuple[int, ...]
    checked: AgainstRecapture


def measure_state(case: SuiteCase) -> Iterator[Cell]:
    """A cell per setting, budget, way and change."""
    case.only(
        *("tables", "shares", "late", "deletes", "come", "expected", "expected_shares"),
        *("budgets", "ways"),
    )
    tables = moving_tables(case, "tables of the workload, the largest first")
    every = (len(tables),)
    options = _Options(
        tables=tables,
        shares=case.numbers("shares", (0.01,)),
        late=case.flag("late"),
        deletes=case.numbers("deletes", (0.0,)),
        come=case.whole_numbers("come", every),
        expected=case.whole_numbers("expected", every),
        expected_shares=case.numbers("expected_shares"),
        budgets=case.numbers("budgets", (1.0,)),
        ways=case.choices("ways", WAYS, (KEPT, CHOSEN, RECAPTURE)),
    )
    if not 0 < sum(options.shares) < 1 or max(options.deletes) > 1:
        raise case.refuse("shares", "shares of the rows, less than all of them together")
    if max((*options.come, *options.expected)) > len(tables):
        raise case.refuse("come", f"numbers of tables, at most {len(tables)}")
    if options.late and options.deletes != (0.0,):
        raise case.refuse("deletes", "not measured where changes are `late`")
    return _cells(case, options)


def _cells(case: SuiteCase, options: _Options) -> Iterator[Cell]:
    together = [options.shares] if options.late else [(share,) for share in options.shares]
    settings = product(together, options.deletes, options.come, options.expected)
    for shares, deletes, come, expected in settings:
        for expected_share in options.expected_shares or (shares[0],):
            setting = _Setting(shares, deletes, come, expected, expected_share)
            yield from _of_setting(case, options, setting)


def _of_setting(case: SuiteCase, options: _Options, setting: _Setting) -> Iterator[Cell]:
    reduced = reduced_copy(
        case, options.tables, setting.shares, deletes=setting.deletes, come=setting.come
    )
    with reduced as (base, moving, changes):
        case.step("all kept")
        # Tells what the shares of a budget are of, and warms the process up.
        full = _run(case, base, setting, moving, changes, KEPT, None).stored
        for way, share in product(options.ways, options.budgets):
            if way not in BOUNDED and share != options.budgets[0]:
                continue
            budget = round(full * share) if way in BOUNDED else None
            case.step(f"{way}" + ("" if budget is None else f" within {share:.0%}"))
            runs = [
                _run(case, base, setting, moving, changes, way, budget) for _ in range(case.repeat)
            ]
            labels: dict[str, Label] = {
                "way": way,
                "budget": _UNBOUNDED.get(way, share),
                **_labels(options, setting),
            }
            yield from _told(case, setting, labels, runs)


def _labels(options: _Options, setting: _Setting) -> dict[str, Label]:
    """What tells this setting from the others of the figure."""
    result: dict[str, Label] = {}
    if len(options.deletes) > 1:
        result["deletes"] = setting.deletes
    if len(options.come) > 1:
        result["come"] = setting.come
    if len(options.expected) > 1:
        result["expected"] = setting.expected
    if len(options.expected_shares) > 1:
        result["expected_share"] = setting.expected_share
    return result


def _run(
    case: SuiteCase,
    base: Context,
    setting: _Setting,
    moving: Sequence[TableName],
    changes: Sequence[Change],
    way: str,
    budget: int | None,
) -> _Run:
    spec = case.query
    with (
        scratch_copy(base, prepare(base, spec).tables) as scratch,
        expecting(scratch, _expected(scratch, setting, moving)) as ctx,
        ctx.writing("bench"),
    ):
        capture_ms = captured_under(ctx, spec, budget) + brought_to(ctx, spec, way, budget)
        stored = stored_bytes(ctx, spec, way)
        follower = MeasuredQuery(ctx, prepare(ctx, spec))
        if way == RECAPTURE:
            capture_ms = recapture_ms(follower)
        rows, steps = _followed(ctx, follower, changes, way)
        state = 0 if way == RECAPTURE else follower.state_bytes
        checked = follower.checked()
    return _Run(capture_ms, steps, stored, state, rows, checked)


def _expected(
    scratch: Context, setting: _Setting, moving: Sequence[TableName]
) -> dict[TableName, Declared]:
    """What the file says of the first tables: a share of the rows there are in the end."""
    result = {}
    for index, table in enumerate(moving[: setting.expected]):
        present = scratch.tables.snapshot(table).likely_rows
        full = present / (1 - sum(setting.shares)) if index < setting.come else present
        rows = max(1, round(full * setting.expected_share))
        result[table] = Declared(rows, setting.deletes)
    return result


def _told(
    case: SuiteCase, setting: _Setting, labels: dict[str, Label], runs: Sequence[_Run]
) -> Iterator[Cell]:
    first = runs[0]
    for index, share in enumerate(setting.shares):
        metrics = {
            "capture_ms": Metric.of([run.capture_ms for run in runs]),
            "maintain_ms": Metric.of([run.steps[index] for run in runs]),
            "total_ms": Metric.of([run.capture_ms + sum(run.steps[: index + 1]) for run in runs]),
            "stored_bytes": Metric.of([run.stored for run in runs]),
            "state_bytes": Metric.of([run.state for run in runs]),
        }
        note = f"{first.rows[index]:,} rows of {setting.come} tables"
        yield case.cell(metrics, {**labels, "share": share}, checked=first.checked, note=note)


class _PhaseOptions(Struct, frozen=True):
    tables: tuple[TableName, ...]
    steps: int
    share: float
    ways: tuple[str, ...]
    budget: float


class _Phase(Struct, frozen=True):
    """One way through the changes of one table."""

    convert_ms: float
    steps: tuple[float, ...]
    stored: int
    checked: AgainstRecapture


def measure_phases(case: SuiteCase) -> Iterator[Cell]:
    """A cell per way and table."""
    case.only("tables", "steps", "share", "ways", "budget")
    tables = moving_tables(case, "tables of the workload, in the order of their changes")
    steps = case.whole_number("steps", 3)
    options = _PhaseOptions(
        tables,
        steps,
        share_of_each(case, 0.01, steps),
        case.choices("ways", WAYS, (KEPT, CHOSEN, RECAPTURE)),
        case.numbers("budget", (1.0,))[0],
    )
    return _phase_cells(case, options)


def _phase_cells(case: SuiteCase, options: _PhaseOptions) -> Iterator[Cell]:
    shares = (options.share,) * options.steps
    with reduced_copy(case, options.tables, shares) as (base, moving, changes):
        for way in options.ways:
            case.step(way)
            runs = [
                _run_phases(case, options, base, moving, changes, way) for _ in range(case.repeat)
            ]
            for index, table in enumerate(moving):
                yield _phase_cell(case, {"way": way, "table": table}, [run[index] for run in runs])


def _run_phases(
    case: SuiteCase,
    options: _PhaseOptions,
    base: Context,
    moving: Sequence[TableName],
    changes: Sequence[Change],
    way: str,
) -> list[_Phase]:
    spec = case.query
    found = []
    with scratch_copy(base, prepare(base, spec).tables) as scratch:
        with scratch.writing("bench"):
            captured_under(scratch, spec, None)
            full = stored_bytes(scratch, spec)
        budget = round(full * options.budget) if way in BOUNDED else None
        for table in moving:
            rows = round(scratch.tables.snapshot(table).likely_rows * options.share)
            mine = [{table: change[table]} for change in changes]
            with expecting(scratch, {table: Declared(max(1, rows))}) as ctx:
                found.append(_phase(ctx, spec, mine, way, budget))
            scratch.tables.advance(table)
    return found


def _phase(
    ctx: Context, spec: QuerySpec, changes: Sequence[Change], way: str, budget: int | None
) -> _Phase:
    with ctx.writing("bench"):
        convert_ms = brought_to(ctx, spec, way, budget)
        follower = MeasuredQuery(ctx, prepare(ctx, spec))
        _, steps = _followed(ctx, follower, changes, way)
        stored = stored_bytes(ctx, spec, way)
        return _Phase(convert_ms, steps, stored, follower.checked())


def _phase_cell(case: SuiteCase, labels: dict[str, str], runs: Sequence[_Phase]) -> Cell:
    metrics = {
        "maintain_ms": Metric.of([each for run in runs for each in run.steps]),
        "convert_ms": Metric.of([run.convert_ms for run in runs]),
        "total_ms": Metric.of([run.convert_ms + sum(run.steps) for run in runs]),
        "stored_bytes": Metric.of([run.stored for run in runs]),
    }
    return case.cell(metrics, {**labels}, checked=runs[0].checked)


def _followed(
    ctx: Context, follower: MeasuredQuery, changes: Sequence[Change], way: str
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The rows of each change, and the milliseconds of each step."""
    rows, steps = [], []
    for change in changes:
        rows.append(commit(ctx, change))
        steps.append(step_ms(follower, way))
    return tuple(rows), tuple(steps)

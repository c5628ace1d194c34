"""Measure `mixed`: queries and updates in turn, without sketches, with recaptured, with maintained.

Every strategy runs one and the same seeded sequence on a scratch copy of its own and begins without
a sketch. Updates of `changes` rows are insertions and, as often, earlier insertions taken back;
queries ask with one of `constants` (texts such as `low=10 high=20`; default: the query as it is).

Law: commits, capture, maintenance and reading all count. Every answer is compared with that
without sketch, and the maintained sketches with recapture, outside the timed part.
Out of scope: the strategies (`mixed_strategies`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain, product
from typing import TYPE_CHECKING, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.figures import SuiteCase
from benchmarks.measures.mixed_strategies import (
    Incremental,
    MixedStrategy,
    Recapture,
    Spent,
    WithoutSketch,
    held_specs,
)
from benchmarks.update_stream import Pool, UpdateStream, pool_of
from impctl.bench.record import Cell, Label, Metric
from impctl.bench.timing import WARM_UP
from impctl.measure.scratch import AgainstRecapture, changed_table, scratch_copy, worse_of
from impctl.service.context import Context
from impctl.service.parameters import with_parameters
from impctl.service.prepare import prepare
from impctl.service.results import rows_of
from impctl.service.verify import same_rows
from impctl.workload.models import QuerySpec

if TYPE_CHECKING:
    import pyarrow as pa

STRATEGIES: Mapping[str, type[MixedStrategy]] = {
    "none": WithoutSketch,
    "recapture": Recapture,
    "incremental": Incremental,
}
"""By the label a cell carries; the first one gives the answers the others are compared with."""


_RATIO = re.compile(r"([1-9][0-9]*)U([1-9][0-9]*)Q")


class Ratio(Struct, frozen=True):
    """So many updates, then so many queries."""

    updates: int
    queries: int

    @classmethod
    def read(cls, text: str) -> Self | None:
        """`5U1Q` is five updates and one query; None for anything else."""
        found = _RATIO.fullmatch(text)
        return None if found is None else cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.updates}U{self.queries}Q"


class Operation(Struct, frozen=True):
    """A query with the constants of that number, or an update where there is none."""

    constants: int | None


def sequence(ratio: Ratio, length: int, constants: int, seed: int) -> tuple[Operation, ...]:
    """`length` operations, rounded up to whole blocks; `constants` are numbered from 0."""
    random = np.random.default_rng(seed)
    block = ratio.updates + ratio.queries
    operations: list[Operation] = []
    for _ in range(-(-length // block)):
        operations += [Operation(None)] * ratio.updates
        numbers = random.integers(0, constants, ratio.queries).tolist()
        operations += [Operation(number) for number in numbers]
    return tuple(operations)


class _Options(Struct, frozen=True):
    operations: int
    ratios: tuple[Ratio, ...]
    changes: tuple[int, ...]
    constants: tuple[str, ...]
    key: str


class _Run(Struct, frozen=True):
    """One strategy through one sequence."""

    spent: Spent
    update_ms: float
    answers: tuple[pa.Table, ...]
    sketches: int
    checked: AgainstRecapture | None

    @property
    def total_ms(self) -> float:
        spent = self.spent
        return self.update_ms + spent.query_ms + spent.maintain_ms + spent.capture_ms


def measure_mixed(case: SuiteCase) -> Iterator[Cell]:
    """A cell per ratio, size of change and strategy."""
    case.only("operations", "least", "ratios", "changes", "constants", "key")
    ratios = []
    for text in case.texts("ratios", ("1U1Q", "1U5Q", "5U1Q")):
        ratio = Ratio.read(text)
        if ratio is None:
            raise case.refuse("ratios", "ratios of updates to queries such as `1U5Q`")
        ratios.append(ratio)
    options = _Options(
        case.scaled("operations", 1000, least=case.whole_number("least", 24)),
        tuple(ratios),
        case.whole_numbers("changes", (1, 20, 200, 2000)),
        case.texts("constants"),
        case.key(),
    )
    return _cells(case, options)


def _cells(case: SuiteCase, options: _Options) -> Iterator[Cell]:
    ctx = _with_variants(case.ctx, case.query, options.constants)
    specs = tuple(ctx.workload.queries.values())
    tables = prepare(ctx, specs[0]).tables
    changed = changed_table(ctx.tables, tables)
    pool = pool_of(ctx.tables, changed, options.key, case.seed)
    # An update before each query, so that what recaptures is as warm as what reads.
    warm = [Operation(None), Operation(0)] * WARM_UP
    for kind in STRATEGIES.values():
        _run(ctx, specs, tables, pool, kind, warm, options.changes[0], case.seed)
    for turn, (ratio, size) in enumerate(product(options.ratios, options.changes)):
        operations = sequence(ratio, options.operations, len(specs), case.seed)
        runs: dict[str, list[_Run]] = {name: [] for name in STRATEGIES}
        for name in chain.from_iterable(_in_turn(turn + n) for n in range(case.repeat)):
            case.step(f"{ratio} with {size} changes, {name}")
            kind = STRATEGIES[name]
            run = _run(ctx, specs, tables, pool, kind, operations, size, case.seed)
            runs[name].append(run)
        expected = runs[next(iter(STRATEGIES))][0].answers
        for name in STRATEGIES:
            labels: dict[str, Label] = {"ratio": str(ratio), "changes": size, "strategy": name}
            yield _cell(case, labels, runs[name], expected, len(operations))


def _in_turn(turn: int) -> list[str]:
    """The strategies, each the first one in turn: whoever runs first finds Spark the coldest."""
    names = list(STRATEGIES)
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def _with_variants(ctx: Context, spec: QuerySpec, constants: Sequence[str]) -> Context:
    """The suite's workbench with the query once per choice of constants, and no other query."""
    variants = [with_parameters(spec, text.split()) for text in constants] or [spec]
    workload = replace(ctx.workload, queries=held_specs(spec, variants))
    return Context(ctx.settings, workload, ctx.reporter)


def _run(
    ctx: Context,
    specs: Sequence[QuerySpec],
    tables: tuple[str, ...],
    pool: Pool,
    kind: type[MixedStrategy],
    operations: Sequence[Operation],
    size: int,
    seed: int,
) -> _Run:
    with scratch_copy(ctx, tables) as scratch:
        strategy = kind(scratch, tables)
        updates = UpdateStream(scratch.tables, pool, seed)
        update_ms = 0.0
        answers = []
        for operation in operations:
            if operation.constants is None:
                update_ms += updates.commit(size)
            else:
                answers.append(strategy.answer(specs[operation.constants]))
        spent = replace(strategy.spent)
        return _Run(spent, update_ms, tuple(answers), strategy.sketches, strategy.checked())


def _cell(
    case: SuiteCase,
    labels: Mapping[str, Label],
    runs: Sequence[_Run],
    expected: Sequence[pa.Table],
    operations: int,
) -> Cell:
    """Totals are medians of the runs, and each run's answers and sketches are checked."""
    totals = [run.total_ms for run in runs]
    metrics = {
        "total_ms": Metric.of(totals),
        "update_ms": Metric.of([run.update_ms for run in runs]),
        "query_ms": Metric.of([run.spent.query_ms for run in runs]),
        "maintain_ms": Metric.of([run.spent.maintain_ms for run in runs]),
        "capture_ms": Metric.of([run.spent.capture_ms for run in runs]),
        "operation_ms": Metric.of([total / operations for total in totals]),
    }
    compared = [run.answers for run in runs if run.answers is not expected]
    equal = all(
        same_rows(rows_of(mine), rows_of(theirs))
        for answers in compared
        for mine, theirs in zip(answers, expected, strict=True)
    )
    checks = [run.checked for run in runs if run.checked is not None]
    return case.cell(
        metrics,
        labels,
        checked=reduce(worse_of, checks) if checks else None,
        equal=equal if compared else None,
        note=f"{operations} operations, {len(expected)} of them queries;"
        f" {runs[0].sketches} captured a sketch",
    )

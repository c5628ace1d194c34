"""What answers of a query took, by who gave them: written down, read again, and scaled.

Apart from the rates (`app.using.answer_costs`), since telling kept rows loads no planner.
Law: times only choose between ways to the same answer. They are of one text of a query, values of
parameters aside, and of one path; a ledger that cannot be read or written changes nothing.
"""

from __future__ import annotations

import math
import statistics
import time
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from impctl.app.capturing.kept_ending import result_bytes
from impctl.app.workbench.workbench import Workbench
from impctl.store.disk import Layout
from impctl.store.ledger import AnswerRun, Ledger
from impctl.store.reader import StoreReader
from impctl.values import dataclass
from impctl.workload.models import AnsweredBy, QuerySpec

if TYPE_CHECKING:
    import pyarrow as pa

SLOW_STATE_MS = 300.0
"""What kept rows may take to be told before anybody asks whether reading tables is quicker."""
_SMALL_STATE = 4_000_000
"""Bytes of kept rows that never take so long; what telling fewer took is not written down."""
_LATEST = 3
"""Runs that an estimate is the median of."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Milliseconds, of these `start_ms` to start Spark; by how many recorded `runs`, 0: by
    rates."""

    ms: float
    runs: int = 0
    start_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Fixed:
    """What any query takes, whatever it reads; `first` more where it is the first of its Spark,
    `start` more where that has to be started, as long as no start was recorded."""

    query: float
    first: float = 0.0
    start: float = 0.0


def answer_runs(desk: Workbench, spec: QuerySpec) -> tuple[AnswerRun, ...]:
    """What the latest answers of the query took, newest first."""
    runs = Ledger(desk.store_path).runs(spec.name, _mark(spec))
    return tuple(run for run in runs if _is_amount(run.elapsed_ms) and _is_amount(run.start_ms))


def record_answer(
    desk: Workbench,
    spec: QuerySpec,
    by: AnsweredBy,
    read: tuple[int, int, int],
    elapsed_ms: float,
    start_ms: float = 0.0,
) -> None:
    """Write down what an answer took, where there is a store; `read` are files, rows and bytes."""
    if Layout(desk.store_path).catalog.is_file():
        run = AnswerRun(spec.name, _mark(spec), str(by), time.time(), *read, elapsed_ms, start_ms)
        Ledger(desk.store_path).record_run(run)


def record_told(
    desk: Workbench, store: StoreReader, spec: QuerySpec, rows: pa.Table, elapsed_ms: float
) -> None:
    """Write down what telling kept rows took, where these are many."""
    if result_bytes(store, spec.name) >= _SMALL_STATE:
        read = (0, rows.num_rows, rows.nbytes)
        record_answer(desk, spec, AnsweredBy.STATE, read, elapsed_ms)


def is_slow_to_tell(desk: Workbench, store: StoreReader, spec: QuerySpec) -> bool:
    """Whether telling the kept rows of a query took long."""
    if result_bytes(store, spec.name) < _SMALL_STATE:
        return False
    return state_estimate(answer_runs(desk, spec)).ms >= SLOW_STATE_MS


def state_estimate(runs: Sequence[AnswerRun]) -> Estimate:
    """What telling kept rows takes; 0 where that was not recorded, as they are few."""
    told = [run.elapsed_ms for run in runs if run.by == AnsweredBy.STATE][:_LATEST]
    return Estimate(statistics.median(told) if told else 0.0, len(told))


def start_of(runs: Sequence[AnswerRun], fixed: Fixed) -> float:
    """What starting Spark takes, by the latest starts that were recorded."""
    seen = [run.start_ms for run in runs if run.start_ms > 0][:_LATEST]
    return statistics.median(seen) if seen else fixed.start


def by_runs(
    runs: Sequence[AnswerRun], by: AnsweredBy, rows: int, fixed: Fixed, *, is_up: bool
) -> Estimate | None:
    """What an answer takes that reads so many rows, by the latest recorded runs; None without.

    The first query of a Spark that was started for it takes longer, so runs like the one to come
    tell where there are any.
    """
    mine = [run for run in runs if run.by == by]
    if not mine:
        return None
    alike = [run for run in mine if is_up == (run.start_ms == 0.0)] or mine
    each = [_scaled(run, rows, fixed, is_up=is_up) for run in alike[:_LATEST]]
    start = 0.0 if is_up else start_of(runs, fixed)
    return Estimate(statistics.median(each) + start, len(each), start)


def _scaled(run: AnswerRun, rows: int, fixed: Fixed, *, is_up: bool) -> float:
    """What a run would take that reads so many rows. Of its time at least half depends on them."""
    was_up = run.start_ms == 0.0
    always = min(fixed.query + (0.0 if was_up else fixed.first), run.elapsed_ms / 2)
    now = always if was_up == is_up else fixed.query + (0.0 if is_up else fixed.first)
    return now + (run.elapsed_ms - always) * (rows / run.rows if run.rows else 1.0)


def _mark(spec: QuerySpec) -> int:
    return zlib.crc32(spec.sql.encode())


def _is_amount(ms: object) -> bool:
    return isinstance(ms, float) and math.isfinite(ms) and ms >= 0

"""Measure `deletions`: bounded buffers of MIN, MAX and top-k under patterns of deletions.

Options: `patterns` (`minimal`, `random`, or a ratio of both such as `2:1`), `buffers` (numbers, or
`all` for keeping everything), `rows` per deletion, `updates` (scaled, not below `least`), `by`, the
column whose least values `minimal` deletes (with `greatest` its greatest), and `key`, which tells
rows apart. `points` cells per pattern and buffer show how time, refills and state go on.

Law: every cell of a pattern sees the same deletions; a step is timed with its refills; sketches are
checked against recapture at every point, outside the timed part.
Out of scope: how a buffer is refilled (`service.fill`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.figures import SuiteCase
from benchmarks.update_stream import delete_where
from impctl.bench.record import Cell, Label, Metric
from impctl.errors import UnsupportedError, UsageError
from impctl.measure.kinds import single
from impctl.measure.scratch import captured, scratch_copy, sync_commit
from impctl.service.pinned import PinnedTables
from impctl.service.prepare import prepare
from impctl.service.step import StepDone
from impctl.tables.rows import read_rows
from impctl.workload.models import EVERYTHING, Everything

Keys = npt.NDArray[np.int64]

_RATIO = re.compile(r"([1-9][0-9]*):([1-9][0-9]*)")


class _Options(Struct, frozen=True, kw_only=True):
    patterns: tuple[str, ...]
    buffers: tuple[int | Everything, ...]
    rows: int
    updates: int
    points: int
    by: str
    greatest: bool
    key: str


def measure_deletions(case: SuiteCase) -> Iterator[Cell]:
    """`points` cells per pattern and size of buffer."""
    case.only(
        *("patterns", "buffers", "rows", "updates", "least", "points", "by", "greatest", "key")
    )
    patterns = case.texts("patterns", ("minimal", "random", "2:1", "4:1"))
    if any(pattern_of(text) is None for text in patterns):
        raise case.refuse("patterns", "`minimal`, `random`, or a ratio of both such as `2:1`")
    options = _Options(
        patterns=patterns,
        buffers=_buffers(case),
        rows=case.whole_number("rows", 20),
        updates=case.scaled("updates", 500, least=case.whole_number("least", 60)),
        points=case.whole_number("points", 5),
        by=case.text("by", "a"),
        greatest=case.flag("greatest"),
        key=case.key(),
    )
    return _cells(case, options)


def _buffers(case: SuiteCase) -> tuple[int | Everything, ...]:
    result: list[int | Everything] = []
    for text in case.texts("buffers", ("20", "50", "100", EVERYTHING)):
        if text != EVERYTHING and not (text.isdecimal() and int(text) > 0):
            raise case.refuse("buffers", f"whole numbers of at least 1, or `{EVERYTHING}`")
        result.append(EVERYTHING if text == EVERYTHING else int(text))
    return tuple(result)


def _cells(case: SuiteCase, options: _Options) -> Iterator[Cell]:
    ctx = case.ctx
    table = _only_table(case)
    ordered = _ordered(ctx.tables, table, options)
    for pattern in options.patterns:
        turns = pattern_of(pattern)
        assert turns is not None
        batches = list(
            islice(deletions_of(turns, ordered, options.rows, case.seed), options.updates)
        )
        if not batches:
            raise UsageError(
                f"Table `{table}` has no rows to delete",
                hint="generate more of them with a larger `--scale`, or correct `data`",
            )
        for buffer in options.buffers:
            case.step(f"{pattern} deletions, buffer {buffer}")
            yield from _series(case, options, table, pattern, buffer, batches)


def _only_table(case: SuiteCase) -> str:
    tables = prepare(case.ctx, case.query).tables
    if len(tables) != 1:
        raise UnsupportedError(
            f"Measure `deletions` needs a query over one table; `{case.query.name}` reads "
            f"{len(tables)}",
            code="deletions_of_one_table",
            hint="name another query in the figure's cases",
            location=case.location,
        )
    return tables[0]


def _ordered(tables: PinnedTables, table: str, options: _Options) -> Keys:
    """The keys of all rows, those that a minimal deletion takes first."""
    snapshot = tables.snapshot(table)
    rows = read_rows(snapshot, [options.by, options.key])
    way = "descending" if options.greatest else "ascending"
    order = pc.sort_indices(rows, sort_keys=[(name, way) for name in rows.column_names[:2]])
    keys: Keys = rows.column(1).take(order).to_numpy()
    if len(np.unique(keys)) != len(keys):
        raise UsageError(
            f"Column `{options.key}` of table `{table}` has duplicate values, so it does "
            "not identify rows",
            hint="name a column of distinct whole numbers with `with.key`",
        )
    return keys


def _series(
    case: SuiteCase,
    options: _Options,
    table: str,
    pattern: str,
    buffer: int | Everything,
    batches: Sequence[Keys],
) -> Iterator[Cell]:
    """The cells of one pattern and buffer, after every part of the deletions."""
    spec = replace(case.query, buffer=buffer)
    with scratch_copy(case.ctx, (table,)) as scratch, scratch.writing("bench"):
        follower = captured(scratch, spec)
        steps: list[StepDone] = []
        reported = 0
        points = min(options.points, len(batches))
        for part in np.array_split(np.arange(len(batches)), points):
            for index in part.tolist():
                listed = ", ".join(map(str, batches[index].tolist()))
                delete_where(scratch.tables, table, f"`{options.key}` IN ({listed})")
                sync_commit(scratch.tables, table, index + 1)
                step = follower.follow()
                assert step is not None, "every deletion is a commit"
                steps.append(step)
            metrics = _metrics(steps, steps[reported:], follower.state_bytes)
            reported = len(steps)
            labels: dict[str, Label] = {
                "pattern": pattern,
                "buffer": str(buffer),
                "updates": len(steps),
            }
            yield case.cell(metrics, labels, checked=follower.checked())


def _metrics(
    steps: Sequence[StepDone], latest: Sequence[StepDone], state_bytes: int
) -> dict[str, Metric]:
    """Of the steps so far and of those since the last point."""
    return {
        "maintain_ms": Metric.of([step.total_ms for step in latest]),
        **single(
            {
                "total_ms": sum(step.total_ms for step in steps),
                "refill_count": sum(step.refilled[0] for step in steps),
                "refilled_rows": sum(step.refilled[1] for step in steps),
                "state_bytes": state_bytes,
            }
        ),
    }


def pattern_of(text: str) -> tuple[bool, ...] | None:
    """One round of a pattern, True for a minimal deletion; None for an unknown text."""
    if text == "minimal":
        return (True,)
    if text == "random":
        return (False,)
    found = _RATIO.fullmatch(text)
    if found is None:
        return None
    return (False,) * int(found[1]) + (True,) * int(found[2])


def deletions_of(pattern: Sequence[bool], ordered: Keys, size: int, seed: int) -> Iterator[Keys]:
    """Keys to delete, at most `size` at a time, until no rows are left.

    `ordered` has the keys of all rows, the least row first. `2:1` is two random deletions, then a
    minimal one. The cost of a deletion is proportional to the rows left.
    """
    random = np.random.default_rng(seed)
    left = ordered
    turn = 0
    while len(left):
        count = min(size, len(left))
        if pattern[turn % len(pattern)]:
            deleted = np.arange(count)
        else:
            deleted = random.choice(len(left), count, replace=False)
        yield left[np.sort(deleted)]
        left = np.delete(left, deleted)
        turn += 1

"""Two tables of rows that all have partners, a join of them, and rivals that follow it."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
from msgspec import Struct

from benchmarks.large_joins.partners import MEASURES, partners_table
from benchmarks.trees.streams import Step
from impctl.compile.answers import answer_of_rows
from impctl.compile.compile import compile_plan
from impctl.compile.session import MaintainedQuery
from impctl.data.schema import LONG, Column, Schema
from impctl.rules.finalize import AnswerPlan, answer_plan
from impctl.rules.optimize import core_of, without_free_limit
from impctl.sketch.sketch import RangePartition
from impctl.sql.statement import parse_query

Groups = Mapping[int, int]
"""The sum of every group that is in the answer."""

_CATALOG = {name: Schema(tuple(Column(c, LONG) for c in ("id", "a", "c", "b"))) for name in "rs"}
_RANGES = 100


class Pairs(Struct, frozen=True):
    """Two tables `r` and `s` of so many rows, of which every key has `partners` in each."""

    rows: int
    partners: int

    @property
    def least(self) -> int:
        """What a sum has to be above: three hundredths more than the mean one."""
        return self.partners * self.partners * (MEASURES - 1) * 103 // 200

    @property
    def sql(self) -> str:
        return (
            "SELECT r.a, SUM(s.b) AS total FROM s JOIN r ON s.a = r.a "
            f"GROUP BY r.a HAVING SUM(s.b) > {self.least}"
        )

    def tables(self) -> dict[str, pa.Table]:
        """The rows before anything comes: their `id` is an even number."""
        tables = {"r": partners_table(self.rows, self.partners, 1)}
        tables["s"] = partners_table(self.rows, self.partners, 2)
        return {name: _with_ids(rows, 0) for name, rows in tables.items()}

    def steps(self, size: int) -> Iterator[Step]:
        """So many rows like its own, with an odd `id`, come to `s`, and go with the next step."""
        random = np.random.default_rng(1)
        partner_rows = partners_table(self.rows, self.partners, 2)
        before = self.tables()["s"]
        while True:
            drawn = random.choice(self.rows, size, replace=False)
            inserted = _with_ids(partner_rows.take(pa.array(drawn)), 1)
            yield Step({"s": inserted}, {}, {"s": pa.concat_tables([before, inserted])})
            yield Step({}, {"s": inserted}, {"s": before})

    def groups(self, tables: Mapping[str, pa.Table]) -> Groups:
        """The answer: of a key as often the sum of `s` as `r` has it."""
        keys = [tables[name].column("a").to_numpy() for name in "rs"]
        size = int(max(part.max() for part in keys)) + 1
        times = np.bincount(keys[0], minlength=size)
        sums = np.zeros(size, dtype=np.int64)
        np.add.at(sums, keys[1], tables["s"].column("b").to_numpy())
        totals = times * sums
        return {int(key): int(totals[key]) for key in np.flatnonzero(totals > self.least)}

    def keys_to_ranges(self, name: str, tables: Mapping[str, pa.Table], groups: Groups) -> set[int]:
        """The ranges of a table's `id` that hold rows of these groups."""
        rows = tables[name]
        are_in = np.isin(rows.column("a").to_numpy(), list(groups))
        ids = rows.column("id").to_numpy()[are_in]
        return set(np.searchsorted(bounds_of(self.rows), ids, side="right").tolist())


def bounds_of(rows: int) -> Any:
    """Where the ranges of `id` begin, but for the first."""
    return np.unique(np.linspace(0, 2 * rows, _RANGES + 1, dtype=np.int64)[1:-1])


def _with_ids(rows: pa.Table, odd: int) -> pa.Table:
    """Everybody's `id` twice as large, and one more for odd ones: those that come have new ones."""
    ids = rows.column("id").to_numpy() * 2 + odd
    return rows.set_column(rows.schema.get_field_index("id"), "id", pa.array(ids))


class Tree:
    """impctl's circuit over a join tree: both sketches, the answer's rows, all in memory."""

    def __init__(self, pairs: Pairs, start: Mapping[str, pa.Table], *, keeps: bool) -> None:
        """Filled; with `keeps` the answer's rows are kept beside the sketches."""
        self.pairs = pairs
        query = without_free_limit(parse_query(pairs.sql, _CATALOG))
        self._answer = answer_plan(query) if keeps else None
        plan = core_of(query.root) if self._answer is None else self._answer.kept
        bounds = tuple(bounds_of(pairs.rows).tolist())
        partitions = {
            scan.access: RangePartition(scan.table, "id", LONG, bounds) for scan in plan.scans
        }
        compiled = compile_plan(
            plan, partitions, {}, barriers=(), has_trees=True, answer=self._answer
        )
        self._session = MaintainedQuery(compiled)
        self._session.load(list(start.items()))

    def step(self, step: Step) -> float:
        """Milliseconds of processor time of the step of the engine."""
        changes = step.changes()
        began = time.process_time()
        self._session.step(changes)
        return (time.process_time() - began) * 1000.0

    def is_right(self, tables: Mapping[str, pa.Table]) -> bool:
        """Whether the sketches, and the answer where it is kept, are those of these rows."""
        groups = self.pairs.groups(tables)
        stored = self._session.ranges().items()
        result = {access.split("#")[0]: set(ranges) for access, ranges in stored}
        expected = {name: self.pairs.keys_to_ranges(name, tables, groups) for name in "rs"}
        return result == expected and (self._answer is None or self._kept(self._answer) == groups)

    def _kept(self, answer: AnswerPlan) -> Groups:
        kept = self._session.compiled.kept
        assert kept is not None
        table = answer_of_rows(answer.ending, kept.whole(), "UTC")
        keys, totals = (table.column(index).to_pylist() for index in (0, 1))
        return dict(zip(keys, totals, strict=True))


class PeerFailedError(Exception):
    """It ended, or its answer never became right; the message says which."""


class Taken(Struct, frozen=True):
    """Milliseconds of a step: processor time of all threads, and on the wall."""

    cpu_ms: float
    wall_ms: float


class Peer:
    """The process, from the first line that it says until the block ends."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        env = {**os.environ, **environment}
        self._process = subprocess.Popen(
            command, text=True, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self.facts: dict[str, Any] = self._heard()
        except PeerFailedError:
            self.close()
            raise

    def step(
        self, inserted: Mapping[str, pa.Table], deleted: Mapping[str, pa.Table], groups: Groups
    ) -> Taken:
        """Rows of tables with `id`, `a` and `b` come and go; waits for the answer to be `groups`.

        PeerFailedError where it does not become that.
        """
        lines = [*_lines("+", inserted), *_lines("-", deleted)]
        lines += [f"= {key} {total}" for key, total in groups.items()]
        result = self._asked([*lines, "go"])
        if "cpu_ms" not in result:
            kept = {(key, total) for key, total in result["groups"]}
            wrong, missing = kept - groups.items(), groups.items() - kept
            raise PeerFailedError(
                f"{len(wrong)} groups are wrong, as {sorted(wrong)[:3]}, "
                f"and {len(missing)} are missing, as {sorted(missing)[:3]}"
            )
        return Taken(result["cpu_ms"], result["wall_ms"])

    def rest(self) -> float:
        """Milliseconds of processor time in a second in which nothing changes."""
        return float(self._asked(["rest"])["cpu_ms"])

    def _asked(self, lines: Sequence[str]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n".join(lines) + "\n")
        self._process.stdin.flush()
        return self._heard()

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Some systems greet on the same stream.
            if line.startswith("{"):
                result: dict[str, Any] = json.loads(line)
                return result
        raise PeerFailedError(f"it ended with {self._process.wait()}")

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.communicate()

    def __exit__(self, *_: object) -> None:
        self.close()


def _lines(sign: str, tables: Mapping[str, pa.Table]) -> Iterator[str]:
    for name, rows in tables.items():
        columns = (rows.column(column).to_pylist() for column in ("id", "a", "b"))
        for values in zip(*columns, strict=True):
            yield " ".join((sign, name, *map(str, values)))


class DifferentAnswersError(Exception):
    """Somebody's answer or sketch is not what the rows come to."""


class Turns(Struct, frozen=True):
    """How many steps are taken before the clock counts, how many are timed, rows of each."""

    warm: int
    timed: int
    changed: int = 1_000


class Compared(Struct, frozen=True):
    """Median milliseconds of a step; `rest_ms` is the rival's processor time of an idle second."""

    tree_ms: float
    rival_cpu_ms: float
    rival_wall_ms: float
    rest_ms: float

    @property
    def ratio(self) -> float:
        """The rival's processor time by the tree's."""
        return self.rival_cpu_ms / self.tree_ms

    def text(self) -> str:
        return (
            f"tree {self.tree_ms:.2f} ms, rival {self.rival_cpu_ms:.1f} ms "
            f"(wall {self.rival_wall_ms:.1f}, {self.rest_ms:.1f} in a second at rest): "
            f"{self.ratio:.1f} times"
        )


def compared(pairs: Pairs, turns: Turns, start: Callable[[int], Peer], *, keeps: bool) -> Compared:
    """The medians; `start` gets what a sum has to be above.

    With `keeps` impctl keeps the answer's rows beside its sketches, else its sketches alone.
    DifferentAnswersError, PeerFailedError.
    """
    steps, tables = pairs.steps(turns.changed), pairs.tables()
    tree = Tree(pairs, tables, keeps=keeps)
    with start(pairs.least) as peer:
        say(f"{pairs}: {peer.facts}")
        groups = pairs.groups(tables)
        peer.step(tables, {}, groups)
        _check(tree, tables)
        times = []
        for turn in range(turns.warm + turns.timed):
            step = next(steps)
            tables.update(step.after)
            times.append(_turn(tree, peer, step, tables, is_first=turn % 2 == 0))
        rest_ms = peer.rest()
    tree_ms, cpu_ms, wall_ms = map(statistics.median, zip(*times[turns.warm :], strict=True))
    return Compared(tree_ms, cpu_ms, wall_ms, rest_ms)


def _turn(
    tree: Tree, peer: Peer, step: Step, tables: Mapping[str, pa.Table], *, is_first: bool
) -> tuple[float, float, float]:
    groups = tree.pairs.groups(tables)
    tree_ms = tree.step(step) if is_first else 0.0
    times = peer.step(step.inserted, step.deleted, groups)
    tree_ms = tree_ms if is_first else tree.step(step)
    _check(tree, tables)
    return tree_ms, times.cpu_ms, times.wall_ms


def _check(tree: Tree, tables: Mapping[str, pa.Table]) -> None:
    if not tree.is_right(tables):
        raise DifferentAnswersError("impctl's answer or a sketch of it is wrong")


def report(goal: float, cells: Iterable[tuple[str, Callable[[], Compared], bool]]) -> int:
    """Say every cell's text; 0 where each that counts reaches the goal, 1 where answers differ.

    A goal that is missed is said and is no failure: figures of a machine in use are no verdict.
    """
    for name, measure, counts in cells:
        try:
            result = measure()
        except (DifferentAnswersError, PeerFailedError) as error:
            say(f"{name}: {error}")
            return 1
        missed = counts and result.ratio < goal
        say(f"{name}: {result.text()}" + (f"; the goal of {goal:.0f} is missed" if missed else ""))
    return 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

"""Measure `trees`: what a change costs a join tree and an index join, on the same rows in memory.

Options: `changes`, changed rows of a step (1,000); `kind` of the stream (`app.measuring.trees
.streams`): both, window or outlived; `changed`, the tables that change (the largest); `share` of a
table that a window holds (0.5) and the column `order` it moves along (`id`); `lives`, cells of
`outlived`, of keys in the column `key` (`id`); `steps`, how many are timed (twice the repeats), in
so many `parts`, each a cell; `most_joined`, joined rows beyond which the index is not run, and
`most_asked`, beyond which DuckDB is not asked for groups that pass; `regret` tells what the query's
own `join` takes; `process` starts `impctl capture` for either way.
Law: after each of the first two steps, before anything is timed, and after the last one the
sketches of all ways are compared, and with what DuckDB finds anew. `tree_ms` and `index_ms` are
processor times of a step of the engine in turns, `duckdb_ms` the wall time of the question on all
cores. What is not run is named in the note with its joined rows, never left out silently.
Out of scope: reading changes, commits (`maintain`), captures from files (only by `process`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import field, replace
from functools import reduce
from itertools import islice

import pyarrow as pa
from sqlglot.errors import SqlglotError

from impctl.aliases import AccessId, TableName
from impctl.app.measuring.changed_table import changed_table
from impctl.app.measuring.follower import AgainstRecapture, worse_of
from impctl.app.measuring.ground import Ground
from impctl.app.measuring.kinds.fresh_process import capture_afresh
from impctl.app.measuring.single import single
from impctl.app.measuring.trees.joined_rows import MOST, joined_rows
from impctl.app.measuring.trees.semi_joins import (
    NoSemiJoinsError,
    SketchQuestion,
    put_rows,
    sketch_question,
)
from impctl.app.measuring.trees.streams import (
    Step,
    Stream,
    Tables,
    outlived,
    there_and_back,
    window,
)
from impctl.app.measuring.trees.ways import Choices, Followed, choices_of
from impctl.app.preparing.prepared import prepare
from impctl.app.workbench.scratch import scratch_copy
from impctl.bench.clock import milliseconds
from impctl.bench.parquet_sql import ParquetSql, SqlFailed
from impctl.bench.record import Cell, Label, Metric
from impctl.circuits.way import Way
from impctl.errors import JoinTooLargeError, UnsupportedError
from impctl.plan.nodes import Plan
from impctl.sketch.fragments import FragmentSet
from impctl.sketch.sketch import compare
from impctl.values import dataclass
from impctl.workload.models import JoinStrategy

BOTH, WINDOW, OUTLIVED = "both", "window", "outlived"
_MOST_JOINED = 5_000_000
_MOST_ASKED = 1_000_000_000
"""DuckDB finds the groups that pass by the query itself, whose joined rows it may have to make."""
_ASKED_ANEW = 3
"""Times that DuckDB is timed at most: once takes as long as many steps."""

Sketches = Mapping[AccessId, FragmentSet]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    changes: int
    kind: str
    changed: tuple[TableName, ...]
    share: float
    order: str
    key: str
    lives: tuple[int, ...]
    steps: int
    parts: int
    most_joined: int
    most_asked: int
    regret: bool
    process: bool


def measure_trees(ground: Ground) -> Iterator[Cell]:
    """A cell per part of the stream, for each number of lives."""
    ground.only(
        *("changes", "kind", "changed", "share", "order", "key", "lives"),
        *("steps", "parts", "most_joined", "most_asked", "regret", "process"),
    )
    (share,) = ground.numbers("share", (0.5,))
    (kind,) = ground.choices("kind", (BOTH, WINDOW, OUTLIVED), (BOTH,))
    options = _Options(
        changes=ground.whole_number("changes", 1000),
        kind=kind,
        changed=ground.texts("changed"),
        share=share,
        order=ground.text("order", "id"),
        key=ground.key(),
        lives=ground.whole_numbers("lives", (1,)),
        steps=ground.whole_number("steps", 2 * ground.repeat),
        parts=ground.whole_number("parts", 1),
        most_joined=ground.whole_number("most_joined", _MOST_JOINED),
        most_asked=ground.whole_number("most_asked", _MOST_ASKED),
        regret=ground.flag("regret"),
        process=ground.flag("process"),
    )
    if kind == WINDOW and not 0 < share < 1:
        raise ground.refuse("share", "above 0 and below 1")
    if kind == OUTLIVED and len(options.changed) != 2:
        raise ground.refuse("changed", "the table whose rows live longer, and its partner's")
    if options.parts > options.steps:
        raise ground.refuse("parts", "no more than there are steps")
    return _cells(ground, options)


def _cells(ground: Ground, options: _Options) -> Iterator[Cell]:
    ground.step(f"reading the tables of {ground.query.name}")
    choices = choices_of(ground.desk, ground.query)
    tables = choices.tables()
    for lives in options.lives:
        labels: dict[str, Label] = {"lambda": lives} if options.kind == OUTLIVED else {}
        stream = _stream(ground, options, choices, tables, lives)
        contest = _Contest.opened(ground, options, choices, stream)
        with closing(contest):
            yield from _measured(ground, options, contest, labels)


def _stream(
    ground: Ground, options: _Options, choices: Choices, tables: Tables, lives: int
) -> Stream:
    largest = changed_table(ground.desk.tables, choices.prepared.tables)
    changed = options.changed or (largest,)
    unknown = [name for name in changed if name not in tables]
    if unknown:
        raise ground.refuse("changed", f"tables that query `{ground.query.name}` reads")
    match options.kind:
        case "window":
            share, order = options.share, options.order
            return window(tables, changed, options.changes, order=order, share=share)
        case "outlived":
            size, seed = options.changes, ground.seed
            return outlived(tables, changed, size, key=options.key, lives=lives, seed=seed)
    return there_and_back(tables, changed, options.changes, ground.seed)


@dataclass(slots=True)
class _Contest:
    """The ways that follow one stream, and what is said of those that do not."""

    stream: Stream
    tree: Followed
    index: Followed | None
    takes_tree: bool | None
    """Which of both the query's own `join` takes; None where that is not asked."""
    joined: int | None
    notes: list[str]
    connection: ParquetSql | None = None
    question: SketchQuestion | None = None
    now: dict[TableName, pa.Table] = field(default_factory=dict)

    @classmethod
    def opened(
        cls, ground: Ground, options: _Options, choices: Choices, stream: Stream
    ) -> _Contest:
        """All circuits filled; DuckDB connected where it is installed."""
        way = choices.way(JoinStrategy.TREE)
        if not way.has_tree:
            raise _nothing_joined(choices)
        taken = choices.way() if options.regret else None
        assert way.core is not None
        assert way.compiled is not None
        ground.step(f"filling the tree of {ground.query.name}")
        tree = Followed(way.compiled, stream.start)
        joined = joined_rows(way.core, choices.partitions, stream.start)
        takes_tree = None if taken is None else taken.has_tree
        found = cls(stream, tree, None, takes_tree, joined, [], now=dict(stream.start))
        if taken is not None:
            found.notes.append(_taken(choices.prepared.spec.join, taken))
        if joined is None or joined <= options.most_joined:
            found.fill_index(ground, choices)
        else:
            found.notes.append(f"index join not run: {_count(joined)} joined rows")
        found.ask_duckdb(way.core, choices, options.most_asked)
        return found

    def ask_duckdb(self, core: Plan, choices: Choices, most_joined: int) -> None:
        """DuckDB beside, where it is there and has an answer in bounded time."""
        try:
            question = sketch_question(core, choices.partitions)
        except (NoSemiJoinsError, SqlglotError) as error:
            self.notes.append(f"DuckDB not asked: {error}")
            return
        joined = self.joined or 0
        if question.has_groups and joined > most_joined:
            self.notes.append(f"DuckDB not asked: groups of {_count(joined)} joined rows")
            return
        self.question, self.connection = question, ParquetSql.open()
        if self.connection is None:
            self.notes.append("DuckDB is not installed")

    def fill_index(self, ground: Ground, choices: Choices) -> None:
        """The index join beside, as far as a step's partners may go."""
        ground.step(f"filling the index join of {ground.query.name}")
        compiled = choices.way(JoinStrategy.INDEX).compiled
        assert compiled is not None
        try:
            self.index = Followed(compiled, self.stream.start)
        except JoinTooLargeError as error:
            self.notes.append(f"index join not run: {error.message}")

    def step(self) -> tuple[Step, dict[str, float]]:
        """The stream's next step, and each way's milliseconds for it."""
        step = next(self.stream.steps)
        times = {"tree_ms": self.tree.step(step)}
        if self.index is not None:
            try:
                times["index_ms"] = self.index.step(step)
            except JoinTooLargeError as error:
                # What it holds now is of no step.
                self.index = None
                self.notes.append(f"index join stopped: {error.message}")
        self.now |= step.after
        return step, times

    def checked(self) -> AgainstRecapture | None:
        """The tree's sketches against those of all others; None without another."""
        found = []
        if self.index is not None:
            found.append(_compared(self.tree.fragments(), self.index.fragments()))
        if (anew := self._anew()) is not None:
            found.append(_compared(self.tree.fragments(), anew))
        return reduce(worse_of, found) if found else None

    def _anew(self) -> Sketches | None:
        if self.connection is None or self.question is None:
            return None
        try:
            put_rows(self.connection, self.now)
            return self.question.asked(self.connection)
        except SqlFailed as error:
            self.notes.append(f"DuckDB cannot run the question: {error}")
            self.question = None
            return None

    def asked_anew(self, times: int) -> list[float]:
        """Milliseconds of DuckDB for the rows as they were last compared."""
        connection, question = self.connection, self.question
        if connection is None or question is None:
            return []
        return [milliseconds(lambda: question.asked(connection)) for _ in range(times)]

    def close(self) -> None:
        """Let go of DuckDB."""
        if self.connection is not None:
            self.connection.close()


def _taken(join: JoinStrategy, way: Way) -> str:
    """What the query's own `join` takes, and why where it is a choice."""
    what = "the tree" if way.has_tree else "the index join"
    why = "" if way.trees is None else f": {way.trees.reason}"
    return f"`join: {join}` takes {what}{why}"


def _nothing_joined(choices: Choices) -> UnsupportedError:
    return UnsupportedError(
        f"Query `{choices.prepared.spec.name}` joins nothing, so it has no tree to measure",
        code="no_join_tree",
        hint="measure it with `maintain`",
        location=choices.prepared.spec.location,
    )


def _compared(held: Sketches, accurate: Sketches) -> AgainstRecapture:
    relations = [compare(fragments, accurate[access]) for access, fragments in held.items()]
    return AgainstRecapture(all(r.covers for r in relations), sum(r.slack for r in relations))


def _measured(
    ground: Ground, options: _Options, contest: _Contest, labels: Mapping[str, Label]
) -> Iterator[Cell]:
    checks = []
    for _ in range(2):
        ground.step(f"comparing the sketches of {ground.query.name}")
        contest.step()
        checks.append(contest.checked())
    anew = contest.asked_anew(min(ground.repeat, _ASKED_ANEW))
    ground.step(f"timing {options.steps} steps of {ground.query.name}")
    touched = contest.tree.touched
    steps = [contest.step() for _ in range(options.steps)]
    touched = contest.tree.touched - touched
    checks.append(contest.checked())
    held = [check for check in checks if check is not None]
    checked = reduce(worse_of, held) if held else None
    if checked is None:
        contest.notes.append("nothing to compare the sketches with")
    whole = {**_sizes(contest), **_peaks(ground, options, contest)}
    whole["touched_count"] = touched / max(sum(step.rows for step, _ in steps), 1)
    growth = _growth([times["tree_ms"] for _, times in steps])
    for part in range(options.parts):
        ends = [at * options.steps // options.parts for at in (part, part + 1)]
        metrics = _times([times for _, times in islice(steps, *ends)], anew)
        own = {**labels, "part": part + 1} if options.parts > 1 else labels
        told = {**whole, **_regret(contest, metrics)}
        if 1 < options.parts == part + 1:
            told |= growth
        yield ground.cell(
            {**metrics, **single(told)},
            own,
            checked=checked,
            note="; ".join(contest.notes),
        )


def _times(steps: Sequence[Mapping[str, float]], anew: Sequence[float]) -> dict[str, Metric]:
    """Medians, and how many times as long the others take."""
    ran = [name for name in steps[0] if all(name in times for times in steps)]
    found = {name: Metric.of([times[name] for times in steps]) for name in ran}
    if anew:
        found["duckdb_ms"] = Metric.of(anew)
    for other, ratio in (("index_ms", "index_ratio"), ("duckdb_ms", "duckdb_ratio")):
        if other in found and found["tree_ms"].low > 0:
            found[ratio] = Metric.quotient(found[other], found["tree_ms"])
    return found


def _sizes(contest: _Contest) -> dict[str, float]:
    tree, index = contest.tree, contest.index
    found: dict[str, float] = {"state_bytes": tree.state_bytes, "capture_ms": tree.capture_ms}
    if index is not None:
        found |= {"index_state_bytes": index.state_bytes, "index_capture_ms": index.capture_ms}
    if contest.joined is not None:
        found["joined_rows"] = contest.joined
    return found


def _peaks(ground: Ground, options: _Options, contest: _Contest) -> dict[str, float]:
    """The peak memory of a capture in a process of its own, of the ways that were run."""
    if not options.process:
        return {}
    ways = {"process_bytes": JoinStrategy.TREE}
    if contest.index is not None:
        ways["index_process_bytes"] = JoinStrategy.INDEX
    found: dict[str, float] = {}
    tables = prepare(ground.desk, ground.query).tables
    for name, join in ways.items():
        with scratch_copy(ground.desk, tables) as scratch:
            found[name] = capture_afresh(scratch, replace(ground.query, join=join)).peak_bytes
    return found


def _growth(times: Sequence[float]) -> dict[str, float]:
    """By how much the mean of the last tenth of the steps is above that of the first."""
    tenth = max(len(times) // 10, 1)
    first, last = statistics.fmean(times[:tenth]), statistics.fmean(times[-tenth:])
    return {"growth_share": last / first - 1.0} if first > 0 else {}


def _regret(contest: _Contest, metrics: Mapping[str, Metric]) -> dict[str, float]:
    """By how much what the query's own `join` takes is slower than the quicker of both."""
    taken = "tree_ms" if contest.takes_tree else "index_ms"
    both = [metrics[name].median for name in ("tree_ms", "index_ms") if name in metrics]
    if contest.takes_tree is None or len(both) < 2 or min(both) <= 0:
        return {}
    return {"regret_share": metrics[taken].median / min(both) - 1.0}


def _count(rows: int) -> str:
    return "more than 4 * 10^18" if rows >= MOST else f"{rows:,}"

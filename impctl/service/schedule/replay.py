"""Commits to be replayed: those that the store and the logs know."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING

from impctl.forecast import Arrival, History, effective_times
from impctl.service.budget.costs import ROWS_UNKNOWN
from impctl.service.context import Context, known_histories
from impctl.service.text import moment_text
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.store.records import StoreReader
    from impctl.types import TableName


@dataclass(frozen=True, slots=True)
class ReplayedCommits:
    """The commits of one table: `times` ascending, `rows` and `bytes` of all before each, and of
    all. `guessed` counts those whose rows are not in the log."""

    times: Sequence[float]
    rows: Sequence[int]
    bytes: Sequence[int]
    guessed: int = 0

    def __len__(self) -> int:
        return len(self.times)

    def until(self, at: float) -> int:
        return bisect_right(self.times, at)

    def next_after(self, at: float) -> float | None:
        result = bisect_right(self.times, at)
        return self.times[result] if result < len(self.times) else None


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay from `since` to `until`; `source` is for people, `histories` for the choice of
    state."""

    since: float
    until: float
    commits: Mapping[TableName, ReplayedCommits]
    histories: Mapping[TableName, History]
    source: str
    warnings: tuple[str, ...] = field(default=())

    @property
    def count(self) -> int:
        return sum(len(one) for one in self.commits.values())

    @property
    def rows(self) -> int:
        return sum(one.rows[-1] for one in self.commits.values())


def replay_of(
    arrivals: Mapping[TableName, Sequence[Arrival]],
    tail: float,
    source: str,
    warnings: tuple[str, ...] = (),
) -> Replay:
    """The commits of each table in any order, until `tail` seconds after the last."""
    times = [each.at for arrival in arrivals.values() for each in arrival if each.at is not None]
    since, until = min(times, default=0.0), max(times, default=0.0) + tail
    histories = {
        name: History("", len(result), since, tuple(sorted(result, key=time_of)))
        for name, result in arrivals.items()
    }
    commits = {
        name: commits_of(history.arrivals, since, until) for name, history in histories.items()
    }
    return Replay(since, until, commits, histories, source, warnings)


def time_of(each: Arrival) -> float:
    """The recorded time; 0 without one."""
    return each.at or 0.0


def commits_of(arrivals: Sequence[Arrival], since: float, until: float) -> ReplayedCommits:
    """The commits of a table from `since` to `until`."""
    known = [each for each in arrivals if each.at is None or each.at <= until]
    times = effective_times(known, until)
    first = bisect_left(times, since)
    kept = known[first : bisect_right(times, until)]
    sizes = [(each.rows, each.bytes) for each in known if each.rows is not None]
    all_rows, all_bytes = sum(rows for rows, _ in sizes), sum(size for _, size in sizes)

    def guess(each: Arrival) -> int:
        # By the rows per byte of commits that tell both.
        if not sizes:
            return ROWS_UNKNOWN
        if not all_bytes or not each.bytes:
            return max(1, round(all_rows / len(sizes)))
        return max(1, round(each.bytes * all_rows / all_bytes))

    rows = [guess(each) if each.rows is None else each.rows for each in kept]
    return ReplayedCommits(
        times[first : first + len(kept)],
        [0, *accumulate(rows)],
        [0, *accumulate(each.bytes for each in kept)],
        sum(each.rows is None for each in kept),
    )


def merged(of: Mapping[TableName, ReplayedCommits]) -> ReplayedCommits:
    """The commits of several tables in the order of their times, then of the tables' names."""
    commits = sorted(
        (at, name, one.rows[place + 1] - one.rows[place], one.bytes[place + 1] - one.bytes[place])
        for name, one in of.items()
        for place, at in enumerate(one.times)
    )
    return ReplayedCommits(
        [at for at, _, _, _ in commits],
        [0, *accumulate(rows for _, _, rows, _ in commits)],
        [0, *accumulate(size for _, _, _, size in commits)],
    )


BY_STORE = "the histories of the tables"


def replay_of_store(
    ctx: Context,
    store: StoreReader | None,
    tables: Collection[TableName],
    since: float | None,
    now: float,
) -> Replay:
    """What is known of these tables from `since` on (None: of all of them together) until now."""
    histories = known_histories(ctx.tables, store, sorted(tables))
    # From when on all commits of a table are known; None where it never had one.
    known = {
        name: history.since
        if history.since is not None and history.since <= now
        else next(iter(effective_times(history.arrivals, now)), None)
        for name, history in histories.items()
    }
    start = max((at for at in known.values() if at is not None), default=now)
    begin = start if since is None else max(since, start)
    warnings = list(_cut(known, begin, since)) + list(_gaps(histories, begin, now))
    result = {name: commits_of(held.arrivals, begin, now) for name, held in histories.items()}
    return Replay(begin, now, result, _replayed(histories, begin, now), BY_STORE, tuple(warnings))


def _known_since(held: History, now: float) -> float | None:
    """From when on all commits of a table are known; None where it never had one."""
    if held.since is not None and held.since <= now:
        return held.since
    return next(iter(effective_times(held.arrivals, now)), None)


def _with_times(held: History, now: float) -> Iterator[tuple[float, Arrival]]:
    """The commits of a table, each with its assumed time."""
    return zip(effective_times(held.arrivals, now), held.arrivals, strict=True)


def _replayed(
    histories: Mapping[TableName, History], since: float, until: float
) -> dict[TableName, History]:
    """The histories without what is not replayed."""
    result = {}
    for name, held in histories.items():
        kept = tuple(each for at, each in _with_times(held, until) if since <= at <= until)
        result[name] = replace(held, since=since, arrivals=kept)
    return result


def _cut(
    known: Mapping[TableName, float | None], begin: float, since: float | None
) -> Iterator[str]:
    """What is said where less is known than was asked for."""
    if since is None or begin <= since:
        return
    names = [f"`{name}`" for name, at in known.items() if at == begin]
    yield (
        f"commits of {' and '.join(names)} are known only from "
        f"{moment_text(datetime.fromtimestamp(begin, UTC))}, where the replay begins"
    )


def _gaps(histories: Mapping[TableName, History], since: float, until: float) -> Iterator[str]:
    for name, held in histories.items():
        times = effective_times(held.arrivals, until)
        gaps = sum(
            each.is_after_gap and since < at <= until
            for at, each in zip(times, held.arrivals, strict=True)
        )
        if gaps or held.has_missed:
            yield f"some commits of `{name}` are unknown: its log was cleaned up in between"

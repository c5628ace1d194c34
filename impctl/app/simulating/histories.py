"""The commits that the store and the tables' logs know of, to be replayed.

Law: nothing is replayed of a time in which commits of one of the tables are not known, as far as
that can be told; where that makes it less than was asked for, it is said. Reads logs only.
Out of scope: commits of a file (`simulating.arrivals_file`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from impctl.app.results.amounts import moment_text
from impctl.app.simulating.arrived import Replay, commits_of
from impctl.app.simulating.late import Late, spread
from impctl.app.workbench.histories import known_histories
from impctl.app.workbench.workbench import Workbench
from impctl.forecast import Arrival, History, effective_times
from impctl.store.reader import StoreReader
from impctl.types import TableName

BY_STORE = "the histories of the tables"


def replay_of_store(
    desk: Workbench,
    store: StoreReader | None,
    tables: Collection[TableName],
    since: float | None,
    now: float,
    late: Late | None = None,
) -> Replay:
    """What is known of these tables from `since` on (None: of all of them together) until now.

    With rows that come `late` also those of commits before that, and none that come later than now.
    """
    histories = known_histories(desk.tables, store, sorted(tables))
    known = {name: _known_since(held, now) for name, held in histories.items()}
    start = max((at for at in known.values() if at is not None), default=now)
    begin = start if since is None else max(since, start)
    warnings = list(_cut(known, begin, since)) + list(_gaps(histories, begin, now))
    if late is not None:
        histories = late_histories(histories, late, now)
    result = {name: commits_of(held.arrivals, begin, now) for name, held in histories.items()}
    return Replay(begin, now, result, _replayed(histories, begin, now), BY_STORE, tuple(warnings))


def _known_since(held: History, now: float) -> float | None:
    """From when on all commits of a table are known; None where it never had one."""
    if held.since is not None and held.since <= now:
        return held.since
    return next(iter(effective_times(held.arrivals, now)), None)


def late_histories(
    histories: Mapping[TableName, History], late: Late, now: float
) -> dict[TableName, History]:
    """The histories with rows that come late, at times that go by those of their commits."""
    timed = {}
    for name, held in histories.items():
        timed[name] = [replace(each, at=at) for at, each in _with_times(held, now)]
    parts = spread(timed, late, now)
    return {name: replace(held, arrivals=tuple(parts[name])) for name, held in histories.items()}


def _with_times(held: History, now: float) -> Iterator[tuple[float, Arrival]]:
    """The commits of a table, each with the time that it is taken to be of."""
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

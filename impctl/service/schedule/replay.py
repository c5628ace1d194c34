"""Commits to be replayed: those that the store and the logs know, or a CSV file."""

from __future__ import annotations

import csv
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from fractions import Fraction
from itertools import accumulate, zip_longest
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from impctl.errors import Location, Problem, UsageError, WorkloadError
from impctl.forecast import Arrival, History, effective_times
from impctl.service.budget.costs import ROWS_UNKNOWN
from impctl.service.context import Workbench, known_histories
from impctl.service.text import moment_text
from impctl.values import dataclass
from impctl.workload.load import read_file
from impctl.workload.models import seconds_in, written
from impctl.workload.yaml import FileReading, Lines, YamlFault, compose, inside, shown, suggestion

if TYPE_CHECKING:
    from impctl.store.records import StoreReader
    from impctl.types import TableName

HEADER = ("time", "table", "inserted", "deleted")
INVALID = "arrivals_invalid"
_MOST_PROBLEMS = 20
_MOST_BYTES = 256 << 20
"""Some five million lines."""
_MOST_DIGITS = 15
_END = datetime(3000, 1, 1, tzinfo=UTC).timestamp()
"""Latest possible time: a replay ends after the last commit, and calendars end in 9999."""
_HEADER_HINT = f"the first line is `{','.join(HEADER)}`"


class _Fault(Exception):
    """What is wrong with one field."""

    def __init__(self, column: int, message: str, hint: str) -> None:
        super().__init__(message)
        self.column, self.message, self.hint = column, message, hint


def replay_of_file(
    path: Path,
    tables: Collection[TableName],
    known: Collection[TableName],
    tail: float,
    late: Late | None = None,
) -> Replay:
    """The commits of the file, until `tail` seconds after the last, rows that come `late` included.
    Lines about tables not in `tables` are skipped, but reported if not `known` to the workload.
    WorkloadError for an invalid file."""
    result: dict[TableName, list[Arrival]] = {name: [] for name in tables}
    problems: list[Problem] = []
    others: dict[TableName, int] = {}
    for line, fields in enumerate(_lines(path), start=1):
        try:
            if line == 1:
                if tuple(field.lower() for field in fields) != HEADER:
                    raise _Fault(0, "The first line does not name the columns", _HEADER_HINT)
            elif fields:
                table, arrival = _arrival(fields, known)
                if table in result:
                    result[table].append(arrival)
                else:
                    others[table] = others.get(table, 0) + 1
        except _Fault as fault:
            # As far as fields without quotes tell.
            column = 1 + sum(len(field) + 1 for field in fields[: fault.column])
            place = Location(str(path), line, column)
            problems.append(Problem(fault.message, place, fault.hint))
            if len(problems) == _MOST_PROBLEMS or line == 1:
                break
    if problems:
        more = f" (the first {len(problems)} of more)" if len(problems) == _MOST_PROBLEMS else ""
        count = "1 line is" if len(problems) == 1 else f"{len(problems)} lines are"
        error = WorkloadError(f"{count} wrong in {path}{more}", problems)
        error.code = INVALID
        raise error
    warnings = tuple(
        f"no replayed query reads `{name}`: its lines in {path} are ignored" for name in others
    )
    arrivals = result if late is None else spread(result, late, _END)
    return replay_of(arrivals, tail, str(path), warnings)


def _lines(path: Path) -> Iterator[Sequence[str]]:
    """The fields of each line, stripped."""
    hint = f"give a CSV file; {_HEADER_HINT}"
    try:
        data = read_file(path, _MOST_BYTES)
        text = data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not UTF-8"
        message = f"File `{path}` cannot be read: {reason}"
        raise UsageError(message, hint=hint, code=INVALID) from None
    if len(data) > _MOST_BYTES:
        message = f"File `{path}` is too large: more than {_MOST_BYTES} bytes"
        raise UsageError(message, hint=hint, code=INVALID)
    for line in text.splitlines() or [""]:
        try:
            fields = next(csv.reader([line], strict=True), [])
        except csv.Error:
            fields = [line]
        yield [field.strip() for field in fields]


def _arrival(fields: Sequence[str], known: Collection[TableName]) -> tuple[TableName, Arrival]:
    if len(fields) != len(HEADER):
        raise _Fault(
            0, f"Expected {len(HEADER)} fields, but the line has {len(fields)}", _HEADER_HINT
        )
    time, table, inserted, deleted = fields
    if table not in known:
        hint = suggestion(table, sorted(known), "the workload has")
        message = f"Table {shown(table)} is not in the workload file"
        raise _Fault(1, message, hint or "name a table of the workload")
    at, inserted_rows, deleted_rows = _seconds(time), _count(inserted, 2), _count(deleted, 3)
    return table, Arrival(0, at, inserted_rows, deleted_rows, files=0, bytes=0, operation="")


def _seconds(text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
        seconds = (at.replace(tzinfo=UTC) if at.tzinfo is None else at).timestamp()
    except (ValueError, OverflowError):
        hint = "write it as 2026-11-27T10:41:58Z"
        raise _Fault(0, f"Not a time: {shown(text)}", hint) from None
    if seconds < 0:
        raise _Fault(0, f"A time before 1970: {shown(text)}", "check the year")
    if seconds >= _END:
        raise _Fault(0, f"A time after the year 2999: {shown(text)}", "check the year")
    return seconds


def _count(text: str, column: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _MOST_DIGITS:
        what = f"`{HEADER[column]}` is not a number of rows: {shown(text)}"
        raise _Fault(column, what, "write a whole number, 0 for none")
    return int(text)


@dataclass(frozen=True, slots=True)
class Commits:
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
    commits: Mapping[TableName, Commits]
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


def commits_of(arrivals: Sequence[Arrival], since: float, until: float) -> Commits:
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
    return Commits(
        times[first : first + len(kept)],
        [0, *accumulate(rows)],
        [0, *accumulate(each.bytes for each in kept)],
        sum(each.rows is None for each in kept),
    )


def merged(of: Mapping[TableName, Commits]) -> Commits:
    """The commits of several tables in the order of their times, then of the tables' names."""
    commits = sorted(
        (at, name, one.rows[place + 1] - one.rows[place], one.bytes[place + 1] - one.bytes[place])
        for name, one in of.items()
        for place, at in enumerate(one.times)
    )
    return Commits(
        [at for at, _, _, _ in commits],
        [0, *accumulate(rows for _, _, rows, _ in commits)],
        [0, *accumulate(size for _, _, _, size in commits)],
    )


BY_STORE = "the histories of the tables"


def replay_of_store(
    desk: Workbench,
    store: StoreReader | None,
    tables: Collection[TableName],
    since: float | None,
    now: float,
    late: Late | None = None,
) -> Replay:
    """What is known of these tables from `since` on (None: of all of them together) until now. Rows
    that come `late` include those of earlier commits, and exclude those later than now."""
    histories = known_histories(desk.tables, store, sorted(tables))
    # From when on all commits of a table are known; None where it never had one.
    known = {
        name: history.since
        if history.since is not None and history.since <= now
        else next(iter(effective_times(history.arrivals, now)), None)
        for name, history in histories.items()
    }
    start = max((at for at in known.values() if at is not None), default=now)
    begin = start if since is None else max(since, start)
    warnings = []
    if since is not None and begin > since:
        names = [f"`{name}`" for name, at in known.items() if at == begin]
        warnings.append(
            f"commits of {' and '.join(names)} are known only from "
            f"{moment_text(datetime.fromtimestamp(begin, UTC))}, where the replay begins"
        )
    for name, history in histories.items():
        gaps = any(
            each.is_after_gap and begin < at <= now for at, each in _with_times(history, now)
        )
        if gaps or history.has_missed:
            warnings.append(
                f"some commits of `{name}` are unknown: its log was cleaned up in between"
            )
    if late is not None:
        histories = late_histories(histories, late, now)
    result = {name: commits_of(history.arrivals, begin, now) for name, history in histories.items()}
    replayed = {}
    for name, history in histories.items():
        kept = tuple(each for at, each in _with_times(history, now) if begin <= at <= now)
        replayed[name] = replace(history, since=begin, arrivals=kept)
    return Replay(begin, now, result, replayed, BY_STORE, tuple(warnings))


def late_histories(
    histories: Mapping[TableName, History], late: Late, now: float
) -> dict[TableName, History]:
    """The histories with late rows, whose times are relative to their commits'."""
    timed = {}
    for name, history in histories.items():
        timed[name] = [replace(each, at=at) for at, each in _with_times(history, now)]
    parts = spread(timed, late, now)
    return {
        name: replace(history, arrivals=tuple(parts[name])) for name, history in histories.items()
    }


def _with_times(held: History, now: float) -> Iterator[tuple[float, Arrival]]:
    """The commits of a table, each with its assumed time."""
    return zip(effective_times(held.arrivals, now), held.arrivals, strict=True)


MOST_COMMITS = 1_000_000
"""Replay at most so many, so that a small share of many rows does not fill the memory."""

_WHERE = "`--late`"
_HINT = (
    "write `p: 0.9, every: 60s`: the share of rows that arrives at once, and the "
    "interval for the rest"
)
_SHARE_HINT = "a share above 0 and at most 1, such as 0.9"
_SPAN_HINT = "a number above 0 and its unit: `500ms`, `5s`, `10m`, `1h` or `7d`"
_KEYS = ("p", "every")
_MOST_LATE_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Late:
    """The share `p` of what is left comes `every` so many seconds, the first at once."""

    p: Fraction
    every: float

    @property
    def text(self) -> str:
        return f"p {float(self.p):g}, every {written(self.every)}"


def late_from(text: str) -> Late:
    """Parse a flag, `p: 0.9, every: 60s`, in braces or not; UsageError if invalid."""
    opening = "" if text.lstrip().startswith("{") else "{"
    whole = f"{opening}{text}}}" if opening else text
    reading = FileReading(Lines("--late", whole), {})
    try:
        result = _read(reading, whole)
    except YamlFault as fault:
        place = _place(reading.lines.at(fault.index), opening)
        raise UsageError(f"{_WHERE} cannot be read: {text}", hint=_HINT, location=place) from None
    if isinstance(result, Late):
        return result
    place = reading.lines.at(0) if result.location is None else result.location
    raise UsageError(result.message, hint=result.hint or _HINT, location=_place(place, opening))


def _read(reading: FileReading, text: str) -> Late | Problem:
    fields = reading.record(compose(text), _WHERE, (), _KEYS) or {}
    p = reading.cell(fields.get("p"), inside(_WHERE, "p"), "a share such as 0.9")
    every = reading.cell(fields.get("every"), inside(_WHERE, "every"), "a duration such as 60s")
    share = None
    if p is not None and len(p.written) <= _MOST_LATE_DIGITS and p.written.isascii():
        # The exact share.
        digits = p.written.strip()
        share = Fraction(digits) if digits.replace(".", "", 1).isdecimal() else None
        share = share if share is not None and 0 < share <= 1 else None
    seconds = None if every is None else seconds_in(every.written, needs_unit=True)
    if p is not None and share is None:
        message = f"{inside(_WHERE, 'p')} must be a share such as 0.9"
        reading.report(fields["p"], message, _SHARE_HINT)
    if every is not None and seconds is None:
        message = f"{inside(_WHERE, 'every')} must be a duration such as 60s"
        reading.report(fields["every"], message, _SPAN_HINT)
    if reading.problems:
        return reading.problems[0]
    if share is None or seconds is None:
        missing = next(key for key in _KEYS if key not in fields)
        return Problem(f"`{missing}` is missing in {_WHERE}", None, _HINT)
    return Late(share, seconds)


def _place(location: Location, opening: str) -> Location:
    if location.line != 1 or location.column is None:
        return location
    return replace(location, column=max(1, location.column - len(opening)))


def spread(
    arrivals: Mapping[TableName, Sequence[Arrival]], late: Late, end: float
) -> dict[TableName, list[Arrival]]:
    """The parts of all commits by table, in the order of their times, none after `end`. Every
    commit has a time. UsageError for more than `MOST_COMMITS`."""
    left, result = MOST_COMMITS, {}
    for name, commits in arrivals.items():
        parts: list[Arrival] = []
        for each in commits:
            parts += _parts(each, late, end, left - len(parts))
        left -= len(parts)
        parts.sort(key=time_of)
        result[name] = parts
    return result


def _parts(each: Arrival, late: Late, end: float, most: int) -> Iterator[Arrival]:
    """One commit's parts; UsageError for more than `most`."""
    assert each.at is not None, "its time is known"
    if not each.rows or each.inserted is None or each.deleted is None:
        counts: Iterator[tuple[int | None, int | None]] = iter([(each.inserted, each.deleted)])
    else:
        pieces = _counts(each.inserted, late.p), _counts(each.deleted, late.p)
        counts = zip_longest(*pieces, fillvalue=0)
    seen, size = 0, 0
    for turn, (inserted, deleted) in enumerate(counts):
        at = each.at + turn * late.every
        if at > end:
            return
        if turn == most:
            raise UsageError(
                f"{_WHERE} splits the replayed commits into more than {MOST_COMMITS:,} commits",
                hint="give a larger share, or replay a shorter time with `--since`",
            )
        seen += (inserted or 0) + (deleted or 0)
        until = each.bytes * seen // each.rows if each.rows else each.bytes
        yield replace(
            each,
            at=at,
            inserted=inserted,
            deleted=deleted,
            bytes=until - size,
            is_after_gap=each.is_after_gap and not turn,
        )
        size = until


def _counts(rows: int, p: Fraction) -> Iterator[int]:
    """Rows split into parts; each is at least one."""
    while rows:
        left = rows * (p.denominator - p.numerator) // p.denominator
        yield rows - left
        rows = left


Noise = Callable[[], float]
"""The factor by which the next step exceeds its estimate."""

_SPREAD = 0.35
_SELDOM, _TIMES = 0.01, 8.0


def steady() -> float:
    """Every step takes its estimate."""
    return 1.0


def noisy(random: Random) -> Noise:
    """Steps of a busy machine."""

    def times() -> float:
        spread = random.lognormvariate(0.0, _SPREAD)
        return spread * (_TIMES if random.random() < _SELDOM else 1.0)

    return times

"""Commits out of a CSV file, to be replayed: `time,table,inserted,deleted`.

Law: what cannot be read is an error with its line and a hint, all of them at once (up to some);
nothing is guessed. Times are ISO 8601, UTC without an offset; lines may be in any order.
Out of scope: commits that the store knows (`simulating.histories`).
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from impctl.app.simulating.arrived import Replay, replay_of
from impctl.app.simulating.late import Late, spread
from impctl.errors import Location, Problem, UsageError, WorkloadError
from impctl.forecast import Arrival
from impctl.types import TableName
from impctl.workload.load import read_file
from impctl.workload.yaml import shown, suggestion

HEADER = ("time", "table", "inserted", "deleted")
INVALID = "arrivals_invalid"
_MOST_PROBLEMS = 20
_MOST_BYTES = 256 << 20
"""Some five million lines."""
_MOST_DIGITS = 15
_END = datetime(3000, 1, 1, tzinfo=UTC).timestamp()
"""Of the times that may come: what is replayed ends after the last, and calendars end in 9999."""
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

    Lines about other `tables` than these are left out, but for such as the workload does not have
    (`known`). Raises WorkloadError for what is no such file.
    """
    result: dict[TableName, list[Arrival]] = {name: [] for name in tables}
    problems: list[Problem] = []
    others: dict[TableName, int] = {}
    for line, fields in enumerate(_lines(path), start=1):
        try:
            if line == 1:
                _check_header(fields)
            elif fields:
                table, arrival = _arrival(fields, known)
                if table in result:
                    result[table].append(arrival)
                else:
                    others[table] = others.get(table, 0) + 1
        except _Fault as fault:
            place = Location(str(path), line, _column_of(fields, fault.column))
            problems.append(Problem(fault.message, place, fault.hint))
            if len(problems) == _MOST_PROBLEMS or line == 1:
                break
    if problems:
        raise _invalid(path, problems)
    warnings = tuple(
        f"no replayed query reads `{name}`: its lines in {path} are ignored" for name in others
    )
    came = result if late is None else spread(result, late, _END)
    return replay_of(came, tail, str(path), warnings)


def _lines(path: Path) -> Iterator[Sequence[str]]:
    """The fields of each line, blanks around them taken off."""
    try:
        data = read_file(path, _MOST_BYTES)
        text = data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not UTF-8"
        raise UsageError(
            f"File `{path}` cannot be read: {reason}",
            hint=f"give a CSV file; {_HEADER_HINT}",
            code=INVALID,
        ) from None
    if len(data) > _MOST_BYTES:
        raise UsageError(
            f"File `{path}` is too large: more than {_MOST_BYTES} bytes",
            hint=f"give a CSV file; {_HEADER_HINT}",
            code=INVALID,
        )
    lines = text.splitlines()
    if not lines:
        lines = [""]
    for line in lines:
        try:
            fields = next(csv.reader([line], strict=True), [])
        except csv.Error:
            fields = [line]
        yield [field.strip() for field in fields]


def _check_header(fields: Sequence[str]) -> None:
    if tuple(field.lower() for field in fields) != HEADER:
        raise _Fault(0, "The first line does not name the columns", _HEADER_HINT)


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
    at, came, went = _seconds(time), _count(inserted, 2), _count(deleted, 3)
    return table, Arrival(0, at, came, went, files=0, bytes=0, operation="")


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


def _column_of(fields: Sequence[str], column: int) -> int:
    """Where a field begins, as far as fields without quotes tell."""
    return 1 + sum(len(field) + 1 for field in fields[:column])


def _invalid(path: Path, problems: Sequence[Problem]) -> WorkloadError:
    more = f" (the first {len(problems)} of more)" if len(problems) == _MOST_PROBLEMS else ""
    count = "1 line is" if len(problems) == 1 else f"{len(problems)} lines are"
    error = WorkloadError(f"{count} wrong in {path}{more}", problems)
    error.code = INVALID
    return error

"""One JSON document on stdout per run, in the envelope that `docs/json.md` describes.

Law: the document is written once, at the end, whatever happened. It is strict JSON: numbers that
JSON lacks are the texts "NaN", "Infinity" and "-Infinity", decimals are texts with all digits,
dates and times ISO 8601, binary values hexadecimal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TextIO

import msgspec

from impctl.errors import WorkloadError
from impctl.service.answer import ArrowAnswer
from impctl.service.results import SCHEMA_VERSION, Failure, FollowedRun, Outcome, Result
from impctl.service.text import number_or_name

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_OURS = (datetime, date, Decimal, bytes)
"""Types that msgspec would write in another form."""


class JsonOutput:
    """Collects results and prints the envelope at the end; `run` is one of several runs of a
    process."""

    def __init__(self, command: str | None, stdout: TextIO, run: FollowedRun | None = None) -> None:
        self._command = command
        self._run = run
        self._stdout = stdout
        self._results: list[Json] = []

    def show(self, result: Result) -> None:
        self._results.append(to_json(result))

    def finished(self, result: Result, place: str) -> bool:
        return False

    def document(self, text: str) -> None:
        """Add a JSON text as the only result."""
        self._results.append(json.loads(text))

    def end(self, outcome: Outcome, decisive: Failure | None) -> None:
        envelope: dict[str, Json] = {
            "schema_version": SCHEMA_VERSION,
            "command": self._command,
            "ok": decisive is None,
            "results": self._results,
            "warnings": list(outcome.warnings),
            "error": None if decisive is None else _error(decisive, outcome.failures),
        }
        if self._run is not None:
            envelope["run"] = to_json(self._run)
        self._stdout.write(json.dumps(envelope, allow_nan=False) + "\n")


def to_json(value: object) -> Json:
    """Convert a result, or any value in one, to JSON. In a result with rows, `columns`, `rows` and
    `row_count` replace the Arrow table."""
    if not isinstance(value, ArrowAnswer):
        return _strict(
            msgspec.to_builtins(value, builtin_types=_OURS, str_keys=True, enc_hook=_plain)
        )
    from impctl.service.formats import json_rows

    names = [name for name in value.__struct_fields__ if name not in ("query", "answer")]
    return {
        "query": to_json(getattr(value, "query", None)),
        "columns": list(value.columns),
        "rows": [] if value.written is not None else json_rows(value.shown),
        "row_count": value.row_count,
        **{name: to_json(getattr(value, name)) for name in names},
    }


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"A result holds a value of type `{type(value).__name__}`")


def _strict(value: Any) -> Json:
    """Replace what JSON lacks."""
    match value:
        case float():
            return number_or_name(value)
        case dict():
            return {key: _strict(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_strict(inner) for inner in value]
        case Decimal():
            return format(value, "f") if value.is_finite() else str(value)
        case date():
            return value.isoformat()
        case bytes():
            return value.hex()
    result: Json = value
    return result


def _error(decisive: Failure, failures: tuple[Failure, ...]) -> Json:
    """The failure that decides the exit code; `failures` lists all if there are several."""
    entry = _failure(decisive)
    if len(failures) > 1:
        entry["failures"] = [_failure(failure) for failure in failures]
    return entry


def _failure(failure: Failure) -> dict[str, Json]:
    error = failure.error
    entry: dict[str, Json] = {"code": error.code, "message": error.message, "hint": error.hint}
    if error.location is not None:
        entry["location"] = to_json(error.location)
    if failure.query is not None:
        entry["query"] = failure.query
    if isinstance(error, WorkloadError):
        names = ("message", "hint", "location")
        entry["problems"] = [
            {name: to_json(getattr(problem, name)) for name in names} for problem in error.problems
        ]
    return entry

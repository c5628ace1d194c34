"""One JSON document on stdout per run, in the envelope that `docs/json.md` describes.

Law: the document is written once, at the end, whatever happened; it is strict JSON, so numbers
that JSON lacks are the texts "NaN", "Infinity" and "-Infinity", decimals are texts, dates ISO.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import TextIO

from msgspec import Struct

from impctl.errors import Location, Problem, WorkloadError
from impctl.service.results import (
    SCHEMA_VERSION,
    ChangesResult,
    Failure,
    FollowedRun,
    QueryResult,
    Result,
    WithoutResult,
)

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class JsonOutput:
    """Collects results and prints the envelope at the end."""

    def __init__(self, command: str | None, stdout: TextIO, run: FollowedRun | None = None) -> None:
        """Set `run` if the document is about one of several runs of a process."""
        self._command = command
        self._run = run
        self._stdout = stdout
        self._results: list[Json] = []

    def _keep(self, result: Result) -> None:
        self._results.append(to_json(result))

    check = capture = apply = maintain = rewrite = query = changes = _keep
    why = without = _keep
    cluster = gain = finding = started = _keep
    status = explain = verify = generate = plan = due = simulate = _keep
    record = comparison = written = gc = _keep

    def finished(self, result: Result, place: str) -> bool:
        return False

    def document(self, text: str) -> None:
        """Add a JSON text as the only result."""
        self._results.append(json.loads(text))

    def end(
        self,
        warnings: tuple[str, ...],
        failures: tuple[Failure, ...],
        decisive: Failure | None,
        note: str = "",
    ) -> None:
        envelope: dict[str, Json] = {
            "schema_version": SCHEMA_VERSION,
            "command": self._command,
            "ok": decisive is None,
            "results": self._results,
            "warnings": list(warnings),
            "error": None if decisive is None else _error(decisive, failures),
        }
        if self._run is not None:
            envelope["run"] = to_json(self._run)
        self._stdout.write(json.dumps(envelope, allow_nan=False) + "\n")


def to_json(value: object) -> Json:
    """Convert a result, or any value in one, to JSON."""
    match value:
        case None | bool():
            return value
        case str():
            return str(value)
        case int():
            return int(value)
        case float():
            if math.isfinite(value):
                return value
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Decimal():
            return format(value, "f") if value.is_finite() else str(value)
        case datetime() | date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case Location():
            return {"file": value.file, "line": value.line, "column": value.column}
        case Mapping():
            return {str(key): to_json(inner) for key, inner in value.items()}
        case tuple() | list():
            return [to_json(inner) for inner in value]
        case QueryResult() | ChangesResult() | WithoutResult():
            return _answered(value)
        case Struct():
            return {name: to_json(getattr(value, name)) for name in value.__struct_fields__}
    raise TypeError(f"A result holds a value of type `{type(value).__name__}`")


def _answered(result: QueryResult | ChangesResult | WithoutResult) -> Json:
    """Convert a result with rows; columns and rows replace the Arrow table."""
    from impctl.service.formats import json_rows

    others = [name for name in result.__struct_fields__ if name not in ("query", "answer")]
    return {
        "query": result.query,
        "columns": list(result.columns),
        "rows": [] if result.written is not None else list(json_rows(result.shown)),
        "row_count": result.row_count,
        **{name: to_json(getattr(result, name)) for name in others},
    }


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
        entry["problems"] = [_problem(problem) for problem in error.problems]
    return entry


def _problem(problem: Problem) -> Json:
    return {
        "message": problem.message,
        "hint": problem.hint,
        "location": to_json(problem.location),
    }

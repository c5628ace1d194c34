"""A record as JSON text and back.

Law: reading what was written gives the same record. A file that is no record, or one of a newer
format, is refused with one sentence; an older format is read. The envelope that `impctl bench
--json` prints is read too.
Out of scope: files (`measure.keep`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from impctl.bench.record import (
    RECORD_FORMAT,
    Cell,
    Chart,
    Figure,
    Label,
    Metric,
    Record,
    RecordKind,
)
from impctl.errors import UsageError

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def record_to_json(record: Record) -> str:
    """The record as one JSON document, readable by people."""
    return json.dumps(_plain(asdict(record)), indent=1, allow_nan=False) + "\n"


def record_from_json(text: str, name: str) -> Record:
    """The record in `text`; UsageError, which calls it `name`, where there is none."""
    try:
        result = _unwrapped(json.loads(text))
    except ValueError:
        raise _foreign(name, "it is not JSON") from None
    if not isinstance(result, dict) or "suite" not in result or "cells" not in result:
        raise _foreign(name, "it has no suite and cells")
    version = result.get("format")
    if not isinstance(version, int):
        raise _foreign(name, "it does not name its format")
    if version > RECORD_FORMAT:
        raise UsageError(
            f"Record `{name}` has a format that this impctl does not support: {version}",
            code="record_newer",
            hint=f"this impctl reads format {RECORD_FORMAT}; use the impctl that wrote the record",
        )
    try:
        return _record(result)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _foreign(name, "parts of it are missing or have another type") from None


def _foreign(name: str, why: str) -> UsageError:
    return UsageError(
        f"File `{name}` is not a record of `impctl bench`: {why}",
        code="record_foreign",
        hint="give a file that `impctl bench WORKLOAD --out FILE` wrote",
    )


def _unwrapped(document: Any) -> Any:
    """The record inside the envelope of `--json`; any other document as it is."""
    if isinstance(document, dict) and isinstance(document.get("results"), list):
        records = [r for r in document["results"] if isinstance(r, dict) and "cells" in r]
        return records[0] if len(records) == 1 else document
    return document


def _plain(value: Any) -> Any:
    """Numbers that JSON lacks as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _record(result: Mapping[str, Any]) -> Record:
    return Record(
        suite=str(result["suite"]),
        title=str(result["title"]),
        scale=_number(result["scale"]),
        repeat=int(result["repeat"]),
        seed=int(result["seed"]),
        started=str(result["started"]),
        elapsed_s=_number(result["elapsed_s"]),
        noise=_number(result["noise"]),
        machine={str(key): str(fact) for key, fact in result["machine"].items()},
        figures=tuple(_figure(entry) for entry in result["figures"]),
        cells=tuple(_cell(entry) for entry in result["cells"]),
        failures=tuple(str(failure) for failure in result["failures"]),
        format=int(result["format"]),
        tables={str(name): int(rows) for name, rows in result.get("tables", {}).items()},
        figure_noise={
            str(name): _number(noise) for name, noise in result.get("figure_noise", {}).items()
        },
        kind=RecordKind(result.get("kind", RecordKind.SUITE)),
    )


def _figure(result: Mapping[str, Any]) -> Figure:
    chart = result["chart"]
    lists = {key: tuple(str(word) for word in chart[key]) for key in ("y", "series", "log")}
    texts = {key: str(result[key]) for key in ("name", "title", "about", "claim", "source")}
    return Figure(chart=Chart(x=str(chart["x"]), **lists), **texts)


def _cell(result: Mapping[str, Any]) -> Cell:
    return Cell(
        figure=str(result["figure"]),
        labels={str(name): _label(label) for name, label in result["labels"].items()},
        metrics={str(name): _metric(metric) for name, metric in result["metrics"].items()},
        covers=_checked(result["covers"]),
        slack=None if result["slack"] is None else int(result["slack"]),
        equal=_checked(result["equal"]),
        note=str(result["note"]),
        fingerprint=str(result.get("fingerprint", "")),
    )


def _metric(result: Mapping[str, Any]) -> Metric:
    median, low, high = (_number(result[key]) for key in ("median", "low", "high"))
    return Metric(median, low, high, int(result["runs"]))


def _label(value: Any) -> Label:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    return value


def _checked(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise TypeError
    return value


def _number(value: Any) -> float:
    if isinstance(value, str):
        return _NOT_FINITE[value]
    if isinstance(value, bool):
        raise TypeError
    return float(value)

"""A run held against a committed baseline of ratios; by `python -m`, the baseline written anew."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from msgspec import Struct
from msgspec.structs import asdict

from impctl.bench.quantity import number
from impctl.bench.record import Cell, Label, Record, record_from_json

FACTOR = 2.5
"""How many times worse a ratio may become before it counts as broken, beyond the run's noise."""


class Expected(Struct, frozen=True):
    """What a ratio usually is."""

    figure: str
    labels: Mapping[str, Label]
    metric: str
    ratio: float


def ratios_of(records: Sequence[Record]) -> tuple[Expected, ...]:
    """The ratios of these runs of one suite, at least one; the median of each, rounded."""
    expecteds: list[Expected] = []
    for cell in records[0].cells:
        for metric in cell.metrics:
            if metric.endswith("_ratio"):
                values = [known for known in (_ratio(r, cell, metric) for r in records) if known]
                ratio = float(f"{median(values):.2g}")
                expecteds.append(Expected(cell.figure, cell.labels, metric, ratio))
    return tuple(expecteds)


def falls(record: Record, baseline: Sequence[Expected], factor: float = FACTOR) -> tuple[str, ...]:
    """A sentence for every ratio that fell below what noise and `factor` explain."""
    result: list[str] = []
    for expected in baseline:
        labels = ", ".join(f"{name} {value}" for name, value in expected.labels.items())
        what = f"{expected.metric} of figure `{expected.figure}` ({labels})"
        cell = Cell(expected.figure, expected.labels, {})
        ratio = _ratio(record, cell, expected.metric)
        least = expected.ratio / (factor * (1 + record.noise))
        if ratio is None:
            result.append(f"{what} was not measured")
        elif ratio < least:
            usual = number(expected.ratio)
            result.append(f"{what} is {number(ratio)}, below {number(least)}; usual is {usual}")
    return tuple(result)


def read_baseline(path: Path) -> tuple[Expected, ...]:
    """What `write_baseline` wrote."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    return tuple(Expected(**entry) for entry in entries)


def write_baseline(path: Path, baseline: Sequence[Expected]) -> None:
    """One entry per line, so that a change of one shows as one."""
    lines = [json.dumps(asdict(each)) for each in baseline]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def _ratio(record: Record, like: Cell, metric: str) -> float | None:
    """The median of the same cell in this run: its best run would pair the slowest recapture with
    the quickest maintenance."""
    for cell in record.cells_of(like.figure):
        if dict(cell.labels) == dict(like.labels) and metric in cell.metrics:
            return cell.metrics[metric].median
    return None


BASELINE = Path(__file__).parent / "suites" / "smoke-baseline.json"

if __name__ == "__main__":
    texts = {name: Path(name).read_text(encoding="utf-8") for name in sys.argv[1:]}
    records = [record_from_json(text, name) for name, text in texts.items()]
    write_baseline(BASELINE, ratios_of(records))

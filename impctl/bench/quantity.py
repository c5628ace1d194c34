"""Numbers with their units for readers: `0.9 ms`, `1.3 s`, `4.2 MB`, `3.5 %`, `180×`.

Law: the unit is the ending of a metric's or label's name, as in `bench.record`; three digits carry
meaning, the rest is noise.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from impctl.bench.record import Label, Metric


class Unit(StrEnum):
    """What a number counts; `NONE` is a bare number."""

    MS = "ms"
    BYTES = "bytes"
    ROWS = "rows"
    SHARE = "share"
    RATIO = "ratio"
    NONE = ""


_DIMENSIONS = {
    Unit.MS: "Time",
    Unit.BYTES: "Size",
    Unit.ROWS: "Rows",
    Unit.SHARE: "Share",
    Unit.RATIO: "Ratio",
    Unit.NONE: "Value",
}
_WORDS = {
    "files_count": "files read",
    "wall_ms": "wall time",
    "cpu_ms": "CPU time",
    "gain_ratio": "speed-up",
    "cpu_gain_ratio": "CPU speed-up",
    "plain_ms": "without sketch",
    "sketch_ms": "with sketch",
    "duckdb_ms": "recapture in DuckDB",
    "pruned_ms": "statistics alone",
    "view_ms": "manually maintained view",
    "state_ms": "materialized result",
    "by_engine_ms": "engine with the sketch",
    "upkeep_ms": "upkeep of the sketch",
    "view_upkeep_ms": "upkeep of the view",
    "duckdb_plain_ms": "DuckDB without sketch",
    "duckdb_sketch_ms": "DuckDB with sketch",
    "duckdb_answer_ms": "DuckDB again",
    "duckdb_cpu_ms": "DuckDB again, processor",
    "duckdb_wall_ms": "DuckDB again, wall",
    "duckdb_plain_cpu_ms": "DuckDB without sketch, processor",
    "duckdb_sketch_cpu_ms": "DuckDB with sketch, processor",
    "duckdb_loaded_ms": "DuckDB, files read once",
    "duckdb_loaded_cpu_ms": "DuckDB, files read once, processor",
    "anew_ms": "engine again",
    "search_ms": "search with arrays",
    "scipy_ms": "search with scipy",
    "tree_ms": "join tree",
    "index_ms": "index join",
    "dred_ratio": "messages of DRed over its own",
    "share": "share of the table",
}
"""Words for names that are unclear on their own."""

SCALES = {
    Unit.MS: ((1e3 * 60 * 60, "h"), (1e3 * 60, "min"), (1e3, "s"), (1.0, "ms")),
    Unit.BYTES: ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
}
"""The units in which readers count times and sizes, largest first."""


def unit_of(name: str) -> Unit:
    """The unit at the end of a name: `maintain_ms` is in milliseconds."""
    ending = name.rpartition("_")[2]
    return next((unit for unit in Unit if unit and unit.value == ending), Unit.NONE)


def dimension_of(unit: Unit) -> str:
    """The title of an axis with this unit."""
    return _DIMENSIONS[unit]


def plain_name(name: str) -> str:
    """A metric's or label's name in words, without its unit: `maintain_ms` is `maintain`."""
    if name in _WORDS:
        return _WORDS[name]
    unit = unit_of(name)
    # "rows share" says more than "rows" beside a percent sign, and `recapture_ms` has a ratio, too.
    keep = unit in (Unit.NONE, Unit.SHARE, Unit.RATIO)
    stem = name if keep else name.removesuffix(unit.value).rstrip("_")
    return (stem or name).replace("_", " ")


def named(name: str, value: Label) -> str:
    """A label with its value in words: `50 groups`, `1 change`, `layout clustered`."""
    text = label_text(name, value)
    words = plain_name(name)
    if name.startswith("query"):
        return text
    if name == "share" and is_number(value):
        return f"{text} of the table"
    # What is counted follows its number.
    if is_number(value) and words.endswith("s") and unit_of(name) in (Unit.NONE, Unit.ROWS):
        return f"{text} {words.removesuffix('s') if value == 1 else words}"
    return f"{words} {text}"


def readable(value: float, unit: Unit) -> str:
    """Format the value with its unit; a dash if it is not finite."""
    if not math.isfinite(value):
        return "–"
    match unit:
        case Unit.MS | Unit.BYTES:
            return _scaled(value, SCALES[unit])
        case Unit.ROWS:
            return f"{number(value)} rows"
        case Unit.SHARE:
            return f"{number(value * 100)} %"
        case Unit.RATIO:
            return times(value)
        case Unit.NONE:
            return number(value)


def metric_text(name: str, value: float) -> str:
    """Format the value of a metric with its unit."""
    return readable(value, unit_of(name))


def times(value: float) -> str:
    """Format a ratio: `180×`, `2.1×`; two digits, because more would promise too much."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}×" if value >= 9.95 else f"{value:.2g}×"


def number(value: float) -> str:
    """Format a number: three digits of a fraction, all digits of a whole number."""
    if not math.isfinite(value):
        return "–"
    if value == int(value):
        return f"{int(value):,}"
    size = math.floor(math.log10(abs(value)))
    places = min(max(2 - size, 0), 12)
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def spread_text(metric: Metric, unit: Unit) -> str:
    """The range of the runs, with the unit once if equal; empty for a single run."""
    if metric.runs < 2 or not (math.isfinite(metric.low) and math.isfinite(metric.high)):
        return ""
    low, high = readable(metric.low, unit), readable(metric.high, unit)
    if low == high:
        return ""
    bare, _, ending = low.rpartition(" ")
    return f"{bare if bare and high.endswith(f' {ending}') else low}–{high}"


def label_text(name: str, value: Label) -> str:
    """Format a label's value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    unit = unit_of(name)
    # A count of rows as a label has its unit in its name already.
    return number(value) if unit in (Unit.ROWS, Unit.NONE) else readable(value, unit)


def is_number(value: Label | None) -> TypeGuard[int | float]:
    """Whether the value has a place on an axis: booleans, text and infinite values have none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for size, unit in steps:
        # 999.6 of a unit would print as 1,000 of it.
        if abs(value) >= size * 0.9995:
            return f"{_three(value / size)} {unit}"
    return f"{_three(value)} {steps[-1][1]}"


def _three(value: float) -> str:
    """At most three digits, and at most three decimal places."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    places = 1 if abs(value) >= 9.995 else 2
    if abs(value) < 0.1:
        places = 3
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if float(text) else "0"

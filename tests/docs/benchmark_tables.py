"""Tables of the pages in docs/records, drawn from the records beside them.

Law: a table below `<!-- table: RECORD FIGURE -->` equals that of the record, number by number, so
that no figure was copied by hand. `python -m tests.docs.benchmark_tables` writes the tables again.
Out of scope: the text around them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from impctl.bench.record import Cell, Record, record_from_json

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "records"

_MARK = re.compile(r"^<!-- table: (\S+) (\S+) -->\n((?:\|.*\n)*)", re.MULTILINE)
_SHARES = (0.01, 0.1)
_CHANGES = (10, 1000)


def pages() -> list[Path]:
    """The pages that have marked tables."""
    return [page for page in sorted(RECORDS.glob("*.md")) if marks(page.read_text("utf-8"))]


def drawn(page: str) -> str:
    """The page with every marked table as its record has it."""
    return _MARK.sub(lambda mark: _marked(mark[1], mark[2]), page)


def marks(page: str) -> list[tuple[str, str]]:
    """The record and the figure of every marked table."""
    return [(mark[1], mark[2]) for mark in _MARK.finditer(page)]


def _marked(name: str, figure: str) -> str:
    record = record_from_json((RECORDS / name).read_text(encoding="utf-8"), name)
    lines = "".join(f"| {' | '.join(row)} |\n" for row in _table(record, figure))
    return f"<!-- table: {name} {figure} -->\n{lines}"


def _table(record: Record, figure: str) -> Iterator[Sequence[str]]:
    cells = record.cells_of(figure)
    # A run that was stopped has no metrics.
    shown = next(cell for cell in cells if cell.metrics)
    draw = next(draw for metric, draw in _BY_METRIC.items() if metric in shown.metrics)
    head, *rows = draw(cells)
    yield head
    yield ["---"] * len(head)
    yield from rows


def _changes(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    """A row per case: recaptures, maintaining by size of change, how much faster that is."""
    has_process = any("process_ms" in cell.metrics for cell in cells)
    shares = [share for share in _SHARES if _with(cells, share=share)]
    changes = [size for size in _CHANGES if _with(cells, changes=size)]
    sizes = [*(f"{size:,} rows" for size in changes), *(f"{share:.0%}" for share in shares)]
    told = sizes[changes.index(1000) :]
    yield [
        _case_name(cells),
        "Spark",
        "DuckDB",
        *sizes,
        *(["`impctl maintain`"] if has_process else []),
        *(f"ratio at {size}" for size in told),
        "state",
    ]
    for name, own in _by_case(cells).items():
        chosen = [_with(own, changes=size) for size in changes]
        chosen += [_with(own, share=share) for share in shares]
        thousand = chosen[changes.index(1000)]
        assert thousand is not None
        yield [
            name,
            _metric(thousand, "recapture_ms"),
            _metric(thousand, "duckdb_ms"),
            *(_metric(cell, "maintain_ms") for cell in chosen),
            *([_metric(thousand, "process_ms")] if has_process else []),
            *(_metric(cell, "recapture_ratio") for cell in chosen[-len(told) :]),
            _metric(thousand, "state_bytes"),
        ]


def _captures(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    yield [_case_name(cells), "plain query", "sketch alone", "with state", "state"]
    metrics = ("plain_ms", "recapture_ms", "capture_ms", "state_bytes")
    for name, (cell, *_) in _by_case(cells).items():
        yield [name, *(_metric(cell, metric) for metric in metrics)]


def _skipping(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    yield [
        *("table", "groups that pass", "plain query", "with sketch", "times faster"),
        *("rows read", "files read", "DuckDB, plain"),
    ]
    metrics = (
        "plain_ms",
        "sketch_ms",
        "gain_ratio",
        "rows_share",
        "files_share",
        "duckdb_plain_ms",
    )
    for cell in cells:
        labels = [str(cell.labels["layout"]), f"{cell.labels['percent']}%"]
        yield [*labels, *(_metric(cell, metric) for metric in metrics)]


def _rivals(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    """A row per case: all ways to compute the result."""
    has_upkeep = any("upkeep_ms" in cell.metrics for cell in cells)
    names = list(dict.fromkeys(name for cell in cells for name in cell.labels))
    yield [
        *names,
        *("all files", "statistics only", "with sketch", "times faster", "hand-written view"),
        *("DuckDB", "DuckDB with sketch", "files read", "bytes read / needed"),
        *(["sketch upkeep", "view upkeep"] if has_upkeep else []),
    ]
    metrics = (
        *("plain_ms", "pruned_ms", "sketch_ms", "gain_ratio", "view_ms"),
        *("duckdb_plain_ms", "duckdb_sketch_ms", "files_share", "bytes_ratio"),
        *(("upkeep_ms", "view_upkeep_ms") if has_upkeep else ()),
    )
    yield from _by_labels(cells, names, metrics)


def _answers(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    """A row per case: every way to compute the result, and the maintenance in some of them."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.labels))
    yield [
        *names,
        *("materialized result", "hand-written view", "engine", "DuckDB with sketch", "DuckDB"),
        *("Spark with sketch", "Spark", "maintenance included", "files read"),
    ]
    metrics = (
        *("state_ms", "view_ms", "by_engine_ms", "duckdb_sketch_ms", "duckdb_plain_ms"),
        *("sketch_ms", "plain_ms", "maintain_ms", "files_share"),
    )
    yield from _by_labels(cells, names, metrics)


def _trees(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    """A row per case: a step of the tree, of the index join, and DuckDB from scratch."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.labels))
    yield [
        *names,
        *("join tree", "index join", "DuckDB", "index / tree", "DuckDB / tree", "tuples touched"),
        *("state", "index state", "capture", "index capture", "joined rows"),
    ]
    metrics = (
        *("tree_ms", "index_ms", "duckdb_ms", "index_ratio", "duckdb_ratio", "touched_count"),
        *("state_bytes", "index_state_bytes", "capture_ms", "index_capture_ms", "joined_rows"),
    )
    yield from _by_labels(cells, names, metrics)


def _chosen(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    """A row per case: both ways, and the cost of the choice that `join: auto` made."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.labels))
    yield [*names, "join tree", "index join", "index / tree", "regret"]
    metrics = ("tree_ms", "index_ms", "index_ratio", "regret_share")
    yield from _by_labels(cells, names, metrics)


def _state(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    """A row per case: the time of a change, and the bytes stored for it."""
    names = _varying(cells)
    heads = {
        "maintain_ms": "per change",
        "process_ms": "per change, fresh process",
        "cold_ms": "cold",
        "convert_ms": "converting",
        "capture_ms": "capture",
        "process_bytes": "resident",
        "stored_bytes": "stored",
    }
    metrics = [metric for metric in heads if metric in cells[0].metrics]
    yield [*names, *(heads[metric] for metric in metrics)]
    yield from _by_labels(cells, names, metrics)


def _deadlines(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    """A row per trigger: its work, and how old and late sketches are."""
    yield ["query", "trigger", "work", "runs", "age", "late"]
    metrics = ("work_ms", "runs_count", "age_ms", "late_share")
    yield from _by_labels(cells, ["query", "trigger"], metrics)


def _peers(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    """A row per scheme and point: traffic, state, and why a run was stopped."""
    heads = {
        "messages_count": "messages",
        "each_count": "per deletion",
        "dred_ratio": "DRed / scheme",
        "sent_bytes": "sent per peer",
        "provenance_bytes": "provenance per row",
        "state_bytes": "state per peer",
        "cpu_ms": "CPU",
    }
    metrics = [name for name in heads if any(name in cell.metrics for cell in cells)]
    names = _varying(cells)
    yield [*names, *(heads[name] for name in metrics), "stopped"]
    for cell, row in zip(cells, _by_labels(cells, names, metrics), strict=True):
        yield [*row, cell.note.partition(" runs ")[2] or cell.note]


def _steps(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    """A row per case and size of change: a step, and everything that recomputes."""
    has_search = any("search_ms" in cell.metrics for cell in cells)
    names = _varying(cells)
    yield [
        *names,
        *("delete", "insert", "engine from scratch", "DuckDB CPU", "DuckDB wall"),
        *(["NumPy", "scipy"] if has_search else []),
        *("DuckDB / delete, CPU", "DuckDB / delete, wall"),
        *(["NumPy / delete", "scipy / delete"] if has_search else []),
        *("rows", "state"),
    ]
    metrics = (
        *("delete_ms", "insert_ms", "anew_ms", "duckdb_cpu_ms", "duckdb_wall_ms"),
        *(("search_ms", "scipy_ms") if has_search else ()),
        *("duckdb_cpu_ratio", "duckdb_wall_ratio"),
        *(("search_ratio", "scipy_ratio") if has_search else ()),
        *("answer_rows", "state_bytes"),
    )
    yield from _by_labels(cells, names, metrics)


def _rewritten(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    """A row per case: the part of the data a sketch reads, and DuckDB's times, wall and CPU."""
    names = _varying(cells)
    yield [
        *names,
        *("table rows", "rows read", "files read", "ranges in sketch", "result rows"),
        *("all files", "all files, CPU", "preloaded", "preloaded, CPU", "sketch", "sketch, CPU"),
        *("all files / sketch", "same, CPU", "preloaded / sketch", "same, CPU"),
    ]
    shares = ("rows_share", "files_share", "fragments_share")
    times = ("duckdb_plain", "duckdb_loaded", "duckdb_sketch")
    for cell in cells:
        yield [
            *(str(cell.labels[name]) for name in names),
            _metric(cell, "sketched_rows"),
            *(f"{cell.metrics[name].median:.1%}" for name in shares),
            _metric(cell, "answer_rows"),
            *(_metric(cell, f"{name}{unit}") for name in times for unit in ("_ms", "_cpu_ms")),
            *(_metric(cell, name) for name in ("gain_ratio", "cpu_gain_ratio")),
            *(_metric(cell, name) for name in ("loaded_ratio", "loaded_cpu_ratio")),
        ]


def _varying(cells: Sequence[Cell]) -> list[str]:
    """Labels that tell cells apart."""
    names = dict.fromkeys(name for cell in cells for name in cell.labels)
    return [name for name in names if len({cell.labels.get(name) for cell in cells}) > 1]


def _by_labels(
    cells: Sequence[Cell], names: Sequence[str], metrics: Sequence[str]
) -> Iterator[Sequence[str]]:
    for cell in cells:
        labels = [_label(name, cell.labels.get(name, "–")) for name in names]
        yield [*labels, *(_metric(cell, metric) for metric in metrics)]


def _label(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    return f"{value:g}%" if name == "passing" else f"{value:,}" if name == "files" else str(value)


_BY_METRIC: dict[str, Callable[[Sequence[Cell]], Iterator[Sequence[str]]]] = {
    "messages_count": _peers,
    "delete_wall_ms": _steps,
    "sketched_rows": _rewritten,
    "stored_bytes": _state,
    "late_share": _deadlines,
    "state_ms": _answers,
    "regret_share": _chosen,
    "tree_ms": _trees,
    "maintain_ms": _changes,
    "capture_ms": _captures,
    "pruned_ms": _rivals,
    "gain_ratio": _skipping,
}

_SIZES = ("changes", "share")


def _case_name(cells: Sequence[Cell]) -> str:
    return ", ".join(name for name in cells[0].labels if name not in _SIZES)


def _by_case(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    result: dict[str, list[Cell]] = {}
    # Cases that `full` adds are measured after the others.
    for cell in sorted(cells, key=_sizes_named):
        values = [
            f"{value:,}" if isinstance(value, int) else str(value)
            for name, value in cell.labels.items()
            if name not in _SIZES
        ]
        result.setdefault(", ".join(values), []).append(cell)
    return result


def _sizes_named(cell: Cell) -> list[float]:
    named = (value for name, value in cell.labels.items() if name not in _SIZES)
    return [value for value in named if isinstance(value, int | float)]


def _with(cells: Sequence[Cell], **labels: float) -> Cell | None:
    ((name, wanted),) = labels.items()
    result = (_share(cell) if name == "share" else cell.labels[name] for cell in cells)
    return next((cell for cell, value in zip(cells, result, strict=True) if value == wanted), None)


def _share(cell: Cell) -> float:
    return round(float(cell.labels.get("share", 0)), 4)


def _metric(cell: Cell | None, name: str) -> str:
    """Milliseconds and ratios bare, as the head of the column says; bytes with their unit."""
    if cell is None or name not in cell.metrics:
        return "–"
    value = cell.metrics[name].median
    if name.endswith("_share"):
        return f"{value:.0%}"
    if name.endswith("_bytes"):
        unit, size = ("MB", 1e6) if value >= 1e6 else ("kB", 1e3)
        return f"{_three(value / size)} {unit}"
    return _three(value)


def _three(value: float) -> str:
    """Three digits."""
    text = f"{value:.3g}"
    return f"{float(text):,.0f}" if abs(value) >= 100 else text


if __name__ == "__main__":
    for path in pages():
        path.write_text(drawn(path.read_text(encoding="utf-8")), encoding="utf-8")

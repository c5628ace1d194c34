"""Tables of the pages in docs/records, drawn from the records beside them.

Law: a table below `<!-- table: RECORD FIGURE -->` equals that of the record, number by number, so
that no figure was copied by hand. `python -m benchmarks.record_tables` writes the tables again.
Out of scope: the text around them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from impctl.bench.record import Cell, Record, record_from_json

ROOT = Path(__file__).parents[1]
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
    shown = sizes[changes.index(1000) :]
    yield [
        _case_name(cells),
        "Spark",
        "DuckDB",
        *sizes,
        *(["`impctl maintain`"] if has_process else []),
        *(f"ratio at {size}" for size in shown),
        "state",
    ]
    for name, case_cells in _by_case(cells).items():
        chosen = [_with(case_cells, changes=size) for size in changes]
        chosen += [_with(case_cells, share=share) for share in shares]
        thousand = chosen[changes.index(1000)]
        assert thousand is not None
        yield [
            name,
            _metric(thousand, "recapture_ms"),
            _metric(thousand, "duckdb_ms"),
            *(_metric(cell, "maintain_ms") for cell in chosen),
            *([_metric(thousand, "process_ms")] if has_process else []),
            *(_metric(cell, "recapture_ratio") for cell in chosen[-len(shown) :]),
            _metric(thousand, "state_bytes"),
        ]


def _captures(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    yield [_case_name(cells), "plain query", "sketch alone", "with state", "state"]
    metrics = ("plain_ms", "recapture_ms", "capture_ms", "state_bytes")
    for name, (cell, *_) in _by_case(cells).items():
        yield [name, *(_metric(cell, metric) for metric in metrics)]


def _skipping(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    columns = {
        "plain_ms": "plain query",
        "sketch_ms": "with sketch",
        "gain_ratio": "times faster",
        "rows_share": "rows read",
        "files_share": "files read",
        "duckdb_plain_ms": "DuckDB, plain",
    }
    yield ["table", "groups that pass", *columns.values()]
    for cell in cells:
        labels = [str(cell.labels["layout"]), f"{cell.labels['percent']}%"]
        yield [*labels, *(_metric(cell, metric) for metric in columns)]


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


_Draw = Callable[[Sequence[Cell]], Iterator[Sequence[str]]]


def _metrics(names_of: Callable[[Sequence[Cell]], Sequence[str]], **heads: str) -> _Draw:
    """A row per cell: these labels, and these metrics as far as a cell has them; below `note` a
    stopped run says why it was stopped."""

    def draw(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
        names = names_of(cells)
        metrics = [name for name in heads if any(name in cell.metrics for cell in cells)]
        notes = [heads["note"]] if "note" in heads else []
        yield [*names, *(heads[name] for name in metrics), *notes]
        for cell in cells:
            labels = [_label(name, cell.labels.get(name, "–")) for name in names]
            why = [cell.note.partition(" runs ")[2] or cell.note] if notes else []
            yield [*labels, *(_metric(cell, metric) for metric in metrics), *why]

    return draw


def _all(cells: Sequence[Cell]) -> list[str]:
    """The labels of all cells."""
    return list(dict.fromkeys(name for cell in cells for name in cell.labels))


def _varying(cells: Sequence[Cell]) -> list[str]:
    """Labels that tell cells apart."""
    return [name for name in _all(cells) if len({cell.labels.get(name) for cell in cells}) > 1]


def _label(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    return f"{value:g}%" if name == "passing" else f"{value:,}" if name == "files" else str(value)


_BY_METRIC: dict[str, _Draw] = {
    "messages_count": _metrics(
        _varying, messages_count="messages", each_count="per deletion", dred_ratio="DRed / scheme",
        sent_bytes="sent per peer", provenance_bytes="provenance per row",
        state_bytes="state per peer", cpu_ms="CPU", note="stopped",
    ),
    "delete_wall_ms": _metrics(
        _varying, delete_ms="delete", insert_ms="insert", anew_ms="engine from scratch",
        duckdb_cpu_ms="DuckDB CPU", duckdb_wall_ms="DuckDB wall", search_ms="NumPy",
        scipy_ms="scipy", duckdb_cpu_ratio="DuckDB / delete, CPU",
        duckdb_wall_ratio="DuckDB / delete, wall", search_ratio="NumPy / delete",
        scipy_ratio="scipy / delete", answer_rows="rows", state_bytes="state",
    ),
    "sketched_rows": _rewritten,
    "stored_bytes": _metrics(
        _varying, maintain_ms="per change", process_ms="per change, fresh process", cold_ms="cold",
        convert_ms="converting", capture_ms="capture", process_bytes="resident",
        stored_bytes="stored",
    ),
    "late_share": _metrics(
        _all, work_ms="work", runs_count="runs", age_ms="age", late_share="late"
    ),
    "state_ms": _metrics(
        _all, state_ms="materialized result", view_ms="hand-written view", by_engine_ms="engine",
        duckdb_sketch_ms="DuckDB with sketch", duckdb_plain_ms="DuckDB",
        sketch_ms="Spark with sketch", plain_ms="Spark", maintain_ms="maintenance included",
        files_share="files read",
    ),
    "regret_share": _metrics(
        _all, tree_ms="join tree", index_ms="index join", index_ratio="index / tree",
        regret_share="regret",
    ),
    "tree_ms": _metrics(
        _all, tree_ms="join tree", index_ms="index join", duckdb_ms="DuckDB",
        index_ratio="index / tree", duckdb_ratio="DuckDB / tree", touched_count="tuples touched",
        state_bytes="state", index_state_bytes="index state", capture_ms="capture",
        index_capture_ms="index capture", joined_rows="joined rows",
    ),
    "maintain_ms": _changes,
    "capture_ms": _captures,
    "pruned_ms": _metrics(
        _all, plain_ms="all files", pruned_ms="statistics only", sketch_ms="with sketch",
        gain_ratio="times faster", view_ms="hand-written view", duckdb_plain_ms="DuckDB",
        duckdb_sketch_ms="DuckDB with sketch", files_share="files read",
        bytes_ratio="bytes read / needed", upkeep_ms="sketch upkeep", view_upkeep_ms="view upkeep",
    ),
    "gain_ratio": _skipping,
}  # fmt: skip
"""How a figure is drawn, by a metric that it has."""

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
    ((name, expected),) = labels.items()
    result = (_share(cell) if name == "share" else cell.labels[name] for cell in cells)
    return next(
        (cell for cell, value in zip(cells, result, strict=True) if value == expected), None
    )


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

"""A small workload whose sketches a few lines of Python can tell, and what a store must hold."""

from __future__ import annotations

import bisect
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from impctl.service.answer import rows_of
from impctl.service.context import open_workbench
from impctl.service.kept_answer import kept_answer
from impctl.service.prepare import prepare
from impctl.service.settings import Settings
from impctl.store.records import StoredQuery
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table

WORKLOAD = """\
version: 1
tables:
  t: {path: TABLE}
partitions:
  t:
    g: {ranges: 4}
    x: {boundaries: [10, 20, 30]}
queries:
  by_g:
    sql: SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING COUNT(*) > 2
    sketch: {t: g}
    policy: incremental
  by_x:
    sql: SELECT x, MAX(g) AS m, MIN(g) AS l FROM t GROUP BY x HAVING COUNT(*) > 2
    sketch: {t: x}
    policy: incremental
    maintain: eager
    answer: true
store: STORE
spark: {master: "local[2]"}
"""
"""Policy `incremental` throughout: nothing here may hide behind a recapture.

One keeps its answer.
"""

_KEYS = {"by_g": "g", "by_x": "x"}
KEPT = "by_x"


def some_rows(count: int, seed: int, start: int = 0) -> pa.Table:
    """Rows with NULL keys; groups of about three, so that many stand at the border of HAVING."""
    draw = random.Random(seed)
    groups = draw.choices([*range(start, start + count // 3), None], k=count)
    values = draw.choices([*range(40), None], k=count)
    return pa.table({"g": pa.array(groups, pa.int64()), "x": pa.array(values, pa.int64())})


def write_workload(folder: Path, rows: int = 60) -> Path:
    """A table, and the workload file beside it."""
    create_table(str(folder / "t"), some_rows(rows, 1))
    file = folder / "w.yaml"
    text = WORKLOAD.replace("TABLE", "t").replace("STORE", ".impctl")
    file.write_text(text)
    return file


def change(table: Path, seed: int) -> None:
    """One commit: rows appended, or every seventh group deleted."""
    if seed % 3 == 2:
        DeltaTable(str(table)).delete(f"g % 7 = {seed % 7}")
    else:
        write_deltalake(str(table), some_rows(12, seed), mode="append")


def newest(table: Path) -> int:
    return int(DeltaTable(str(table)).version())


def check_store(store: Path, table: Path) -> dict[str, StoredQuery]:
    """Every stored sketch is exactly that of its version, and its state can be read whole.

    So is the answer that is kept: the workload file is beside the table.
    """
    result = {}
    with Store.open(store, create=False) as held:
        for name in held.queries():
            stored = held.load(name)
            assert stored is not None
            assert held.load_runs(name)
            (sketch,) = stored.sketches
            wanted = wanted_fragments(stored, table)
            assert set(sketch.fragments.ids) == wanted, (name, stored.versions)
            if name == KEPT:
                rows = Counter(kept_rows_of(stored, table.parent / "w.yaml", store))
                assert rows == wanted_rows(table, stored.versions["t"]), (name, stored.versions)
            result[name] = stored
    return result


def kept_rows_of(
    stored: StoredQuery, workload: Path, store: Path | None = None
) -> list[tuple[Any, ...]]:
    """The rows that are kept with the stored sketch, at its versions however old."""
    assert stored.state_meta.get("answer") is True
    with open_workbench(Settings(workload, store=store)) as desk:
        (spec,) = desk.queries([stored.query])
        reader = desk.reading_store()
        assert reader is not None
        ending = desk.memory.answer(prepare(desk, spec).planned).ending
        answer = kept_answer(desk, reader, spec.name, ending, stored.generation)
        assert answer is not None, (stored.query, stored.generation)
        return [*rows_of(answer)]


def wanted_rows(table: Path, version: int) -> Counter[tuple[Any, ...]]:
    """The answer of `by_x` at this version, from the table itself."""
    groups: dict[Any, list[Any]] = {}
    for row in DeltaTable(str(table), version=version).to_pyarrow_table().to_pylist():
        groups.setdefault(row["x"], []).append(row["g"])
    return Counter(
        (key, max(known, default=None), min(known, default=None))
        for key, result in groups.items()
        for known in [[value for value in result if value is not None]]
        if len(result) > 2
    )


def wanted_fragments(stored: StoredQuery, table: Path) -> set[int]:
    """The fragments of all rows whose group passes HAVING, from the table itself."""
    (sketch,) = stored.sketches
    version = stored.versions["t"]
    name = _KEYS[stored.query]
    column = DeltaTable(str(table), version=version).to_pyarrow_table(columns=[name])[name]
    counts = {row["values"]: row["counts"] for row in column.value_counts().to_pylist()}
    boundaries = sketch.partition.boundaries
    return {
        sketch.partition.ranges if key is None else bisect.bisect_right(boundaries, key)
        for key, count in counts.items()
        if count > 2
    }


def check_nothing_left(store: Path) -> None:
    """The files of state are those that runs refer to, and the folder holds nothing strange."""
    with Store.open(store, create=False) as held:
        refs = [ref for name in held.queries() for ref in held.run_refs(name)]
    folder = store / "state"
    files = list(folder.iterdir()) if folder.exists() else []
    assert len(files) == sum(ref.is_file for ref in refs)
    bases, ends = ("catalog.sqlite", "ledger.sqlite"), ("", "-wal", "-shm")
    known = {f"{base}{end}" for base in bases for end in ends}
    known |= {"lock", "lock.recovery", "state"}
    assert {path.name for path in store.iterdir()} <= known

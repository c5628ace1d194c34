"""DuckDB recomputes both sketches, against a whole durable `maintain` of 1,000 rows.

`python -m benchmarks.rivals.recompute_in_duckdb [ROWS] [PARTNERS ..]`: by default 10,000,000 rows
per table, and 20 and 2,000 partners. Needs `duckdb` in this interpreter and about 5 GB. DuckDB has
all cores and the fastest SQL known here: it groups both sides of the join first, so that nothing is
multiplied, then reads either table through a semi join and groups it by the range of `id`. It runs
over its own tables in memory and over the Parquet files of the Delta tables. impctl's step is a
call of `maintain` on an open workload: the tables' logs, the change feed, the engine and the synced
commit; and `impctl maintain` in a new process, from starting Python.
Ends with 1 if DuckDB is missing or a sketch differs. About ten minutes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

import impctl
from benchmarks.rivals.on_disk import OnDisk, Sketches, Wall, clocked, maintained
from benchmarks.rivals.pairs import say

MISSING = "DuckDB is not installed: install `duckdb` in this environment"
GOAL = 50.0
_CHANGED, _WARM, _TURNS = 1_000, 2, 6
_TEXT = """
WITH counted AS (SELECT a, count(*) AS n FROM {r} GROUP BY a),
     summed AS (SELECT a, sum(b) AS t FROM {s} GROUP BY a),
     passing AS MATERIALIZED (SELECT a FROM counted JOIN summed USING (a) WHERE n * t > {least})
SELECT 'r' AS which, least(id // {width}, {last}) AS part
FROM {r} SEMI JOIN passing USING (a) GROUP BY ALL
UNION ALL
SELECT 's', least(id // {width}, {last}) FROM {s} SEMI JOIN passing USING (a) GROUP BY ALL
"""


def main(arguments: list[str]) -> int:
    if find_spec("duckdb") is None:
        say(MISSING)
        return 1
    rows, *partners = [int(text) for text in arguments] or [10_000_000]
    is_right = True
    for count in partners or (20, 2_000):
        with tempfile.TemporaryDirectory() as folder:
            is_right &= _cell(OnDisk.written(Path(folder), rows, count))
    return 0 if is_right else 1


def _cell(tables: OnDisk) -> bool:
    """Both ways in turns; whether all sketches were right."""
    import duckdb

    name = f"{tables.rows:,} rows a table, {tables.partners:,} partners"
    say(f"{name}: duckdb {duckdb.__version__}")
    steps: list[Wall] = []
    engine: list[float] = []
    measured: dict[str, list[Wall]] = {"memory": [], "files": []}
    with impctl.open(tables.workload) as opened, duckdb.connect() as connection:
        captures: list[Wall] = []
        with clocked(captures):
            opened.capture()
        say(f"{name}: captured in {captures[0].wall_ms / 1000:.1f} s")
        for turn in range(_WARM + _TURNS):
            tables.change(_CHANGED)
            engine.append(maintained(opened, steps))
            expected, stored = tables.sketches(), tables.stored()
            for source, times in measured.items():
                result = _anew(connection, tables, source, times)
                if not result == expected == stored:
                    say(f"{name}: sketches differ at turn {turn}, DuckDB's of {source}")
                    return False
    process = tables.afresh(_CHANGED)
    if tables.sketches() != tables.stored():
        say(f"{name}: sketches of a fresh process differ")
        return False
    sizes = ", ".join(f"{len(ranges):,} ranges of {which}" for which, ranges in expected.items())
    say(f"{name}: sketches have {sizes}")
    step = Wall.middle(steps[_WARM:])
    say(f"{name}: maintain {step.text()}, engine {statistics.median(engine[_WARM:]):.1f} ms")
    say(f"{name}: fresh process {process.text()}")
    for source, times in measured.items():
        again = Wall.middle(times[_WARM:])
        # Who else uses the machine doubles what the wall says, not so much what processors do.
        missed = "" if again.cpu_ms >= GOAL * step.cpu_ms else f"; the goal of {GOAL:.0f} is missed"
        say(f"{name}: DuckDB again from {source} {again.text()}")
        say(f"{name}: that is {again.times(step)} the step's{missed}")
        say(f"{name}: that is {again.times(process)} the fresh process's")
    return True


def _anew(connection: Any, tables: OnDisk, source: str, into: list[Wall]) -> Sketches:
    """What DuckDB finds now, only the question clocked."""
    names = {}
    for name, rows in tables.now().items() if source == "memory" else ():
        names[name] = f"own_{name}"
        connection.register("held", rows)
        connection.execute(f"CREATE OR REPLACE TABLE own_{name} AS FROM held")
        connection.unregister("held")
    for name in ("r", "s") if source == "files" else ():
        names[name] = f"read_parquet({DeltaTable(str(tables.folder / name)).file_uris()})"
    text = _TEXT.format(**names, least=tables.least, width=tables.width, last=tables.last)
    with clocked(into):
        pairs = connection.execute(text).fetchall()
    return {name: frozenset(part for which, part in pairs if which == name) for name in ("r", "s")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Random tables whose metadata promises more than their protocol makes writers keep.

Logs are written by hand: constraints, invariants and NOT NULL under protocols that carry them or do
not, rows that break them, statistics or none, and commits that change protocol, properties or rows.
The answer through the sketch must be that of a few lines of Python over the rows.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.run_cli import Capsys, Cli

Row = tuple[int, int, int | None]
Action = dict[str, Any]

QUERIES: dict[str, tuple[str, Callable[[int], bool] | None]] = {
    "more": ("SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 50", lambda s: s > 50),
    "less": ("SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) < -50", lambda s: s < -50),
    "all": ("SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING MIN(x) IS NOT NULL", None),
}
_PROTOCOLS: tuple[Mapping[str, Any], ...] = (
    {"minReaderVersion": 1, "minWriterVersion": 1},
    {"minReaderVersion": 1, "minWriterVersion": 2},
    {"minReaderVersion": 1, "minWriterVersion": 3},
    {"minReaderVersion": 1, "minWriterVersion": 4},
    {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly"]},
    {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["checkConstraints"]},
    {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["invariants"]},
)
_CHECKS = ("x >= 0", "x <= 0", "x > -5", "x IS NOT NULL AND x >= 0", "x >= 0 OR g > 1")


@dataclass
class HandWritten:
    """A table whose log and files are written one by one."""

    folder: Path
    rng: random.Random
    rows: list[Row] = field(default_factory=list)
    version: int = -1

    def create(self) -> None:
        rng = self.rng
        actions: list[Action] = [self.protocol(), self.any_metadata()]
        if rng.random() < 0.8:
            actions.append(self.file(self.good_rows()))
        self.commit(actions)

    def step(self) -> None:
        """Rows that keep what is promised or break it, another protocol, other properties."""
        match self.rng.randrange(6):
            case 0:
                self.commit([self.protocol()])
            case 1:
                self.commit([self.any_metadata()])
            case 2 | 3:
                self.commit([self.file(self.good_rows())])
            case _:
                self.commit([self.file(self.any_rows())])

    def commit(self, actions: list[Action]) -> None:
        self.version += 1
        log = self.folder / "_delta_log" / f"{self.version:020d}.json"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("".join(json.dumps(action) + "\n" for action in actions))

    def protocol(self) -> Action:
        return {"protocol": self.rng.choice(_PROTOCOLS)}

    def any_metadata(self) -> Action:
        rng = self.rng
        return self.metadata(
            constraint=rng.choice(_CHECKS) if rng.random() < 0.7 else None,
            invariant=rng.choice(_CHECKS) if rng.random() < 0.3 else None,
            is_required=rng.random() < 0.3,
        )

    def metadata(
        self, *, constraint: str | None, invariant: str | None, is_required: bool
    ) -> Action:
        """What is promised of the column `x`."""
        said = {} if invariant is None else {"delta.invariants": _invariant(invariant)}
        fields = [
            {
                "name": name,
                "type": "long",
                "nullable": not (name == "x" and is_required),
                "metadata": said if name == "x" else {},
            }
            for name in ("g", "id", "x")
        ]
        return {
            "metaData": {
                "id": "0b9b0a4e-0000-4000-8000-000000000000",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": {} if constraint is None else {"delta.constraints.c": constraint},
            }
        }

    def good_rows(self) -> list[Row]:
        sign = self.rng.choice((1, 1, -1))
        return [(g, at, sign * abs(x or 0)) for g, at, x in self.any_rows()]

    def any_rows(self) -> list[Row]:
        rng = self.rng
        values = (100, 90, 60, 30, -60, -100, 0, None)
        return [
            (rng.randrange(3), rng.randrange(30), rng.choice(values))
            for _ in range(rng.randint(1, 4))
        ]

    def file(self, rows: Sequence[Row], *, has_statistics: bool | None = None) -> Action:
        self.rows += rows
        columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
        table = pa.table(dict(zip(("g", "id", "x"), columns, strict=True)))
        path = self.folder / f"part-{self.version + 1}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path)
        add = {
            "path": path.name,
            "partitionValues": {},
            "size": path.stat().st_size,
            "modificationTime": 1_700_000_000_000 + self.version,
            "dataChange": True,
        }
        # Without a number of rows Spark would be asked to capture.
        if has_statistics is None:
            has_statistics = self.rng.random() < 0.6
        known = _statistics(table) if has_statistics else {"numRecords": len(table)}
        add["stats"] = json.dumps(known)
        return {"add": add}


def _invariant(condition: str) -> str:
    return json.dumps({"expression": {"expression": condition}})


def _statistics(table: pa.Table) -> Mapping[str, Any]:
    result: dict[str, Any] = {"numRecords": len(table), "minValues": {}, "maxValues": {}}
    result["nullCount"] = {name: table[name].null_count for name in table.column_names}
    for name in table.column_names:
        known = [value for value in table[name].to_pylist() if value is not None]
        if known:
            result["minValues"][name], result["maxValues"][name] = min(known), max(known)
    return result


def expected(rows: list[Row], name: str) -> Counter[tuple[int, int | None]]:
    groups: dict[int, list[int]] = defaultdict(list)
    for g, _, x in rows:
        groups[g] += [] if x is None else [x]
    passes = QUERIES[name][1]
    sums = ((g, sum(values)) for g, values in groups.items() if values)
    return Counter((g, s) for g, s in sums if passes is None or passes(s))


def over_table(folder: Path, capsys: Capsys) -> Cli:
    """A workload of the queries over the table `t` of the folder."""
    lines = [
        "version: 1",
        "tables: {t: {path: t}}",
        "partitions: {t: {id: {boundaries: [10, 20]}}}",
        "queries:",
        *(f'  {name}: {{sql: "{sql}"}}' for name, (sql, _) in QUERIES.items()),
    ]
    return Cli.over(capsys, folder, "\n".join(lines) + "\n")


def one_table(folder: Path, capsys: Capsys, seed: int) -> Iterator[str]:
    """Captures and maintains sketches over a table, says what happened, compares each answer."""
    rng = random.Random(seed)
    table = HandWritten(folder / "t", rng)
    table.create()
    cli = over_table(folder, capsys)
    captured = {r["query"] for r in cli("capture").document["results"]}
    yield from (f"captured {name}" for name in captured)
    for _ in range(3):
        for name in QUERIES:
            ran = cli("query", "--query", name, "--by", "engine", "--sketch", "always")
            if ran.code:
                yield f"refused: {ran.error['code']}"
                continue
            (result,) = ran.results
            answer = Counter((row[0], row[1]) for row in result["rows"])
            assert answer == expected(table.rows, name), (seed, name, table.version)
            is_read = name in captured and not result["left_away"]
            yield "read through a sketch" if is_read else "read whole"
        table.step()
        cli("maintain")

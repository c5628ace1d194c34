"""A program that reads the files of `maintain --changes`, as their documentation tells it to."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SAID = ("_change", "_copies", "_sure")

Answer = Counter[tuple[object, ...]]


def identity(value: object) -> object:
    """What equals only the very same value: bit for bit, but for NaN."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack("d", value)
    return ("null",) if value is None else value


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    """The rows without what is said of them."""
    columns = [
        [identity(value) for value in table.column(at).to_pylist()]
        for at, name in enumerate(table.column_names)
        if name not in SAID
    ]
    return list(zip(*columns, strict=True))


def applied(answer: Answer, changes: pa.Table) -> Answer:
    """The answer after the changes, which may not take what is not there."""
    after = answer.copy()
    kinds, copies = changes["_change"].to_pylist(), changes["_copies"].to_pylist()
    for row, kind, count in zip(rows_of(changes), kinds, copies, strict=True):
        assert count > 0
        if kind == "delete":
            assert after[row] >= count, f"{row} was not there"
        after[row] += count if kind == "insert" else -count
    return +after


@dataclass
class Reader:
    """Stands at a commit of a query, with the answer of then; reads on as commits are made."""

    folder: Path
    answer: Answer
    commit: int
    versions: Mapping[str, int]
    taken: list[str] = field(default_factory=list)

    def read(self, until: int) -> None:
        """Take every file up to a commit that was made; none may be missing, or be there twice."""
        while self.commit < until:
            (path,) = self.folder.glob(f"{self.commit + 1:06}_*.parquet")
            table = pq.read_table(path)
            said = self.said(table)
            assert said["commit"] == self.commit + 1
            assert said["since"] == self.versions, path
            self.answer = applied(self.answer, table)
            self.commit, self.versions = said["commit"], said["versions"]
            self.taken.append(path.name)

    @staticmethod
    def said(table: pa.Table) -> dict[str, Any]:
        result = json.loads(table.schema.metadata[b"impctl"])
        assert isinstance(result, dict)
        return result


def answer_of(rows: Sequence[Sequence[object]]) -> Answer:
    """The answer as a query engine gave it."""
    return Counter(tuple(identity(value) for value in row) for row in rows)

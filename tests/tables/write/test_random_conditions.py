"""Whatever the condition, a batch takes the rows that the condition means, or is not written.

Real tables, partitioned by columns of every kind that `apply` writes; the log sometimes without
statistics; the meaning of a condition is a Python function of the row (`random_conditions`).
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import ImpctlError
from impctl.tables.rows import read_rows
from impctl.tables.source import open_source
from impctl.tables.write.apply import AppliedUpdate, UpdateKind, UpdateRequest, apply_update
from tests.support.random_cases import random_cases
from tests.support.random_conditions import KINDS, Condition, Drawer, rows_of

REPORTED: list[tuple[str, set[int | None]]] = [
    ("(p_i = 1) IS FALSE", {2, 3}),
    ("(p_i = 1) IS NOT TRUE", {2, 3, None}),
    ("(p_i = 1) IS NOT FALSE", {1, None}),
    ("(p_i = 1) IS TRUE", {1}),
    ("p_i < p_i", set()),
    ("NOT (p_i = p_i)", set()),
]
"""Conditions that once took other rows, each with the values for which it is true."""
ROWS = 14


def forget_statistics(path: Path) -> None:
    """A log as writers leave it that gather none."""
    for entry in (path / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            action.get("add", {}).pop("stats", None)
        entry.write_text("".join(json.dumps(action) + "\n" for action in actions))


def make(path: Path, data: pa.Table, parts: Sequence[str], *, statistics: bool) -> None:
    half = len(data) // 2
    write_deltalake(str(path), data.slice(0, half), partition_by=list(parts) or None)
    write_deltalake(str(path), data.slice(half), mode="append")
    if not statistics:
        forget_statistics(path)


def taken(path: Path, kind: UpdateKind, where: str) -> tuple[set[int], AppliedUpdate]:
    """The rows that the batch deleted or changed, and what it told."""
    sets = {"row": "row + 1000"} if kind is UpdateKind.UPDATE else {}
    before = rows_left(path)
    request = UpdateRequest("t", kind, where=where, assignments=sets)
    done = apply_update(open_source("t", str(path)), request)
    left = rows_left(path)
    assert len(left) == len(before) - done.deleted
    assert {row % 1000 for row in left} <= before
    return before - left, done


def rows_left(path: Path) -> set[int]:
    pylist = read_rows(open_source("t", str(path)).snapshot(), ["row"]).column(0).to_pylist()
    assert len(pylist) == len(set(pylist))
    return set(pylist)


def check(seed: int, path: Path) -> str:
    """One random case; what came of it."""
    random_ = random.Random(seed)
    kinds = random_.sample(list(KINDS), random_.choice([1, 1, 2, 3]))
    parts = [f"p_{kind}" for kind in kinds]
    beside = [f"x_{kind}" for kind in kinds]
    is_mixed = random_.random() < 0.5
    drawer = Drawer(random_, [*parts, *beside] if is_mixed else parts)
    condition = drawer.condition()
    data = rows_of(random_, [*parts, *beside], ROWS)
    make(path, data, parts, statistics=random_.random() < 0.75)
    return compare(path, random_.choice(list(UpdateKind)[1:]), condition, data)


def compare(path: Path, kind: UpdateKind, condition: Condition, data: pa.Table) -> str:
    meant = {row["row"] for row in data.to_pylist() if condition.of(row) is True}
    refusal: ImpctlError | None = None
    try:
        hit, done = taken(path, kind, condition.text)
    except ImpctlError as error:
        refusal = error
    if refusal is not None:
        assert DeltaTable(str(path)).version() == 1, (kind, condition.text, refusal)
        assert refusal.exit_code in (2, 3), (kind, condition.text, refusal)
        return f"{refusal.code}: {refusal.message.rpartition(': ')[2]}"
    assert hit == meant, (kind, condition.text, data.to_pylist())
    assert done.deleted + done.updated == len(meant), (kind, condition.text)
    assert (done.version > 1) == bool(meant), (kind, condition.text)
    return "done"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "statistics"), [(UpdateKind.UPDATE, True), (UpdateKind.DELETE, False)]
)
@pytest.mark.parametrize(("where", "values"), REPORTED)
def test_conditions_that_once_took_other_rows(
    tmp_path: Path, where: str, values: set[int | None], kind: UpdateKind, statistics: bool
) -> None:
    present = [1, 2, 3, None]
    meant = {present.index(value) for value in values}
    data = pa.table({"p_i": pa.array(present, pa.int32()), "row": [0, 1, 2, 3]})
    make(tmp_path, data, ["p_i"], statistics=statistics)
    hit, done = taken(tmp_path, kind, where)
    assert (hit, done.deleted + done.updated) == (meant, len(meant))


@random_cases(12, 36, 240)
def test_random_conditions_take_the_rows_they_mean(tmp_path: Path, cases: range) -> None:
    outcomes = Counter(check(seed, tmp_path / str(seed)) for seed in cases)
    assert outcomes["done"] >= len(cases) // 2, outcomes


@pytest.mark.parametrize(
    "where", ["p IS NULL", "p = 'a'", "coalesce(p, 'z') = 'z'", "p IS NOT NULL"]
)
def test_an_empty_text_of_the_log_is_null(tmp_path: Path, where: str) -> None:
    write_deltalake(
        str(tmp_path), pa.table({"p": ["", "a", None], "row": [0, 1, 2]}), partition_by=["p"]
    )
    (entry,) = (tmp_path / "_delta_log").glob("*.json")
    entry.write_text(entry.read_text().replace('"p":null', '"p":""', 1))
    hit, _ = taken(tmp_path, UpdateKind.DELETE, where)
    assert hit == ({1} if where in ("p = 'a'", "p IS NOT NULL") else {0, 2})


@pytest.mark.parametrize("many", [100, pytest.param(3000, marks=pytest.mark.slow)])
def test_a_choice_of_many_partitions(tmp_path: Path, many: int) -> None:
    entries = pa.table({"p": pa.array(range(many), pa.int32()), "row": range(many)})
    write_deltalake(str(tmp_path), entries, partition_by=["p"])
    hit, _ = taken(tmp_path, UpdateKind.DELETE, "p % 2 = 0")
    assert hit == set(range(0, many, 2))

"""TPC-DS on Spark: batches on each fact table, then every query through its sketch and without.

By hand: `IMPCTL_TPCDS` names a workload file with the texts as its queries, over tables beside it;
docs/records/judged-queries.md says where both are from. A batch deletes rows, adds others of the
table once more, and some with other quantities; rows are in several files, so that a sketch skips
files.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

import impctl
from impctl.errors import EvaluationError
from impctl.service.verify import same_rows
from impctl.tables.write.maintenance import create_table

SOURCE = os.environ.get("IMPCTL_TPCDS", "")
FACTS = {
    "catalog_returns": "cr_return_quantity",
    "catalog_sales": "cs_quantity",
    "inventory": "inv_quantity_on_hand",
    "store_returns": "sr_return_quantity",
    "store_sales": "ss_quantity",
    "web_returns": "wr_return_quantity",
    "web_sales": "ws_quantity",
}
FILES = 8
BATCHES = 3
TOGETHER = 8

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.filterwarnings("ignore::impctl.ImpctlWarning"),
    pytest.mark.skipif(not SOURCE, reason="IMPCTL_TPCDS names no workload file"),
]


def test_every_answer_is_the_same(tmp_path: Path, spark: Any) -> None:
    file = _copied(Path(SOURCE), tmp_path)
    kept, different, rows, saved, failed = [], [], 0, 0, 0
    with impctl.open(str(file), spark=spark) as workload:
        every = list(workload.queries)
    for group in _opened(file, every, spark):
        kept += [name for name in group.names if _captured(group.workload, name)]
    for batch in range(BATCHES):
        for table, quantity in FACTS.items():
            _change(tmp_path / "d" / table, quantity, Random(f"{batch} {table}"))
        for group in _opened(file, kept, spark):
            _maintained(group.workload, group.names)
    for group in _opened(file, kept, spark):
        for name in group.names:
            plain = _answer(group.workload, name, sketch="never")
            through = _answer(group.workload, name, sketch="always", require_sketch=True)
            if isinstance(plain, str) or isinstance(through, str):
                failed += plain == through
                different += [] if plain == through else [name]
                continue
            rows += bool(plain.rows)
            saved += through.files_kept < through.files_total
            if not same_rows(plain.rows, through.rows):
                different.append(name)
    said = f"{len(kept)} queries, {rows} with rows, {saved} read fewer files, {failed} fail"
    assert not different, said
    assert len(kept) >= 95, said
    sys.stderr.write(f"{said}\n")


@dataclass(frozen=True, slots=True)
class _Group:
    workload: impctl.OpenWorkload
    names: list[str]


def _opened(file: Path, names: list[str], spark: Any) -> Iterator[_Group]:
    """A few queries at a time: an open workload holds the state of all that it has maintained."""
    for at in range(0, len(names), TOGETHER):
        with impctl.open(str(file), spark=spark) as workload:
            yield _Group(workload, names[at : at + TOGETHER])


def _copied(source: Path, folder: Path) -> Path:
    """The workload beside its tables, the fact tables in several files."""
    shutil.copytree(source.parent / "d", folder / "d")
    for table in FACTS:
        path = folder / "d" / table
        data = DeltaTable(str(path)).to_pyarrow_table()
        shutil.rmtree(path)
        size = math.ceil(data.num_rows / FILES)
        create_table(str(path), data.slice(0, size))
        for at in range(size, data.num_rows, size):
            write_deltalake(str(path), data.slice(at, size), mode="append")
    shutil.copy(source, folder / "w.yaml")
    return folder / "w.yaml"


def _captured(workload: impctl.OpenWorkload, name: str) -> bool:
    try:
        workload.capture(name)
    except impctl.ImpctlError:
        return False
    return True


def _answer(workload: impctl.OpenWorkload, name: str, **how: Any) -> impctl.QueryResult | str:
    """The answer, or the code of the error it ends with: q90 may divide by zero on few rows."""
    try:
        return workload.query(name, **how)
    except EvaluationError as error:
        return error.code


def _maintained(workload: impctl.OpenWorkload, names: list[str]) -> None:
    for name in names:
        workload.maintain(name)


def _change(path: Path, quantity: str, rng: Random) -> None:
    """One commit that deletes about 1% of the rows, one that adds as many, half of them changed."""
    table = DeltaTable(str(path))
    before = table.to_pyarrow_table()
    few = max(4, before.num_rows // 100)
    gone = before.take(sorted(rng.sample(range(before.num_rows), few)))
    key = gone.column_names[0]
    day = next(value for value in gone[key].to_pylist() if value is not None)
    table.delete(f"{key} = {day} AND {quantity} <= {rng.randrange(20, 90)}")
    added = before.take([rng.randrange(before.num_rows) for _ in range(few)])
    at = added.column_names.index(quantity)
    more = pc.add(added[quantity], pa.scalar(rng.randrange(1, 30), added.schema.field(at).type))
    changed = added.set_column(at, added.schema.field(at), more.cast(added.schema.field(at).type))
    write_deltalake(str(path), pa.concat_tables([gone.slice(0, few // 2), changed]), mode="append")

"""A sketch kept by touch reads its own column alone; another one may still become a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from impctl.store.store import Store
from tests.support.run_cli import Cli
from tests.tables import handmade

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MAPPED = {"delta.columnMapping.mode": "name"}
WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2]}}}
queries:
  q: {sql: "SELECT g, MEDIAN(v) AS m FROM t GROUP BY g HAVING MEDIAN(v) > 6", sketch: {t: g}}
"""


def columns(**physical: str) -> dict[str, Any]:
    fields = [
        handmade.field(
            name,
            "long",
            **{
                "delta.columnMapping.id": int(stored[-1]),
                "delta.columnMapping.physicalName": stored,
            },
        )
        for name, stored in physical.items()
    ]
    return handmade.metadata(fields, configuration=MAPPED)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: Any) -> Cli:
    """`v` passes in group 3, `w`, its later form, in group 1."""
    table = tmp_path / "t"
    first = columns(g="col-1", v="col-2", w="col-3")
    handmade.commit(table, 0, handmade.protocol("columnMapping"), first)
    rows = pa.table({"col-1": [1, 3], "col-2": [0, 9], "col-3": [9, 0]})
    name = handmade.write_file(table, "a.parquet", rows)
    handmade.commit(table, 1, handmade.add(name, 2, (table / name).stat().st_size))
    cli = Cli.over(capsys, tmp_path, WORKLOAD)
    assert cli.good("capture").results[0]["mode"] == "touch"
    return cli


def fragments(cli: Cli) -> tuple[int, ...]:
    with Store.open(cli.workload.parent / ".impctl", create=False) as store:
        result = store.load("q")
    assert result is not None
    return tuple(result.sketches[0].fragments.ids)


def test_another_column_takes_its_name(cli: Cli, tmp_path: Path) -> None:
    assert fragments(cli) == (1,)
    handmade.commit(tmp_path / "t", 2, columns(g="col-1", v="col-3"))
    refused = cli("maintain", "--policy", "incremental")
    assert (refused.code, refused.error["code"]) == (7, "schema_changed")
    assert "`v` of table `t` between versions 1 and 2 was replaced" in refused.error["message"]
    (result,) = cli.good("maintain").results
    assert (result["action"], result["reason_code"]) == ("recapture", "schema_changed")
    assert fragments(cli) == (0,)
    assert len(cli.verified(is_exact=False)) == 1


def test_a_column_that_is_not_read_may_change(cli: Cli, tmp_path: Path) -> None:
    handmade.commit(tmp_path / "t", 2, columns(g="col-1", v="col-2", w="col-4"))
    assert cli.good("maintain").results[0]["action"] == "touch"
    assert fragments(cli) == (1,)

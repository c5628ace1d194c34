"""The same changes for queries that the engine does not support: touched or run in Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.outside.conftest import FEED
from tests.outside.workspace import ROWS, more
from tests.support.kept_workload import stored
from tests.support.run_cli import Capsys, Cli
from tests.tables import handmade

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2, 4, 6]}, x: {boundaries: [10, 20]}}}
queries:
  touched: {sql: "SELECT g, MEDIAN(x) AS m FROM t GROUP BY g HAVING MEDIAN(x) > 6", sketch: {t: g}}
  by_spark: {sql: "SELECT g FROM t WHERE md5(note) > '' GROUP BY g HAVING MAX(x) > 20", sketch: {t: x}}
"""  # noqa: E501  # a query per line

Change = Callable[[Path], object]


def append(table: Path) -> None:
    write_deltalake(str(table), more(7, 3, 40), mode="append")


def delete(table: Path) -> None:
    DeltaTable(str(table)).delete("g = 0 OR g IS NULL")


def merge(table: Path) -> None:
    (
        DeltaTable(str(table))
        .merge(more(5, 1), "s.g = t.g", source_alias="s", target_alias="t")
        .when_matched_update(updates={"x": "t.x + 100"})
        .when_not_matched_by_source_delete("t.g = 0")
        .execute()
    )


def overwrite(table: Path) -> None:
    write_deltalake(str(table), more(7, 4, 90), mode="overwrite")


def delete_and_restore(table: Path) -> None:
    delete(table)
    append(table)
    DeltaTable(str(table)).restore(0)


def append_and_optimize(table: Path) -> None:
    append(table)
    DeltaTable(str(table)).optimize.compact()


def add_a_column(table: Path) -> None:
    wider = more(7, 3, 40).append_column("extra", pa.array([1, 2, 3]))
    write_deltalake(str(table), wider, mode="append", schema_mode="merge")


def recreate(table: Path) -> None:
    shutil.rmtree(table)
    write_deltalake(str(table), pa.concat_tables([ROWS, more(7, 3, 40)]), configuration=FEED)


def clean_the_log(table: Path) -> None:
    append(table)
    delete(table)
    DeltaTable(str(table)).create_checkpoint()
    for entry in (table / "_delta_log").glob("*.json"):
        entry.unlink()


def vacuum(table: Path) -> None:
    delete(table)
    options = {"retention_hours": 0, "dry_run": False, "enforce_retention_duration": False}
    DeltaTable(str(table)).vacuum(**options)
    shutil.rmtree(table / "_change_data", ignore_errors=True)


FOLLOWED_CHANGES = [
    [merge, delete_and_restore, add_a_column],
    *(
        pytest.param([change], marks=pytest.mark.long)
        for change in (append, delete, overwrite, append_and_optimize)
    ),
]
GONE = "history_gone"
LOST_CHANGES: dict[Change, str] = {vacuum: GONE, recreate: "table_recreated", clean_the_log: GONE}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_deltalake(str(tmp_path / "t"), ROWS, configuration=FEED)
    return tmp_path / "t"


@pytest.fixture
def cli(table: Path, capsys: Capsys, spark: Any) -> Cli:
    """Both queries captured at version 0."""
    cli = Cli.over(capsys, table.parent, WORKLOAD)
    modes = {r["query"]: r["mode"] for r in cli.good("capture").results}
    assert modes == {"touched": "touch", "by_spark": "recapture"}
    return cli


def verified_slack(cli: Cli) -> dict[str, int]:
    """Verified in Spark; the slack of each sketch."""
    results = cli.verified(is_exact=False)
    assert len(results) == 2
    return {result["query"]: result["slack"] for result in results}


@pytest.mark.parametrize("changes", FOLLOWED_CHANGES, ids=lambda changes: changes[0].__name__)
def test_followed_changes(cli: Cli, table: Path, changes: list[Change]) -> None:
    """`touched` is maintained after each change, `by_spark` is recaptured at the end."""
    for change in changes:
        change(table)
        result = cli.one("maintain", "--query", "touched")
        assert (result["action"], result["reason_code"]) == ("touch", "touch_keyed"), change
        assert len(cli.verified("--query", "touched", is_exact=False)) == 1, change
    refused = cli("maintain", "--policy", "incremental", "--query", "by_spark")
    assert refused.refusal == (7, "not_incremental")
    done = {r["query"]: (r["action"], r["reason_code"]) for r in cli.good("maintain").results}
    assert done["by_spark"] == ("recapture", "not_incremental")
    assert verified_slack(cli)["by_spark"] == 0


def test_lost_changes_are_recaptured(cli: Cli, table: Path) -> None:
    for change, code in LOST_CHANGES.items():
        change(table)
        refused = cli("maintain", "--policy", "incremental", "--query", "touched")
        assert refused.refusal == (7, code), change
        ran = cli.good("maintain")
        done = {r["query"]: (r["action"], r["reason_code"]) for r in ran.results}
        assert done["touched"] == ("recapture", code), change
        assert done["by_spark"][0] == "recapture", change
        assert any("`touched` was recaptured" in text for text in ran.document["warnings"])
        assert verified_slack(cli) == {"touched": 0, "by_spark": 0}, change


def test_a_used_column_is_dropped_and_restored(cli: Cli, table: Path) -> None:
    without_x = ROWS.drop_columns(["x"])
    write_deltalake(str(table), without_x, mode="overwrite", schema_mode="overwrite")
    ran = cli("maintain")
    failures = {failure["query"]: failure["code"] for failure in ran.error["failures"]}
    assert failures == dict.fromkeys(("touched", "by_spark"), "column_unknown")
    write_deltalake(str(table), ROWS, mode="overwrite", schema_mode="overwrite")
    append(table)
    cli.good("maintain")
    verified_slack(cli)


MAPPED = {"delta.columnMapping.mode": "name"}
TOUCHED_WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2]}}}
queries:
  q: {sql: "SELECT g, MEDIAN(v) AS m FROM t GROUP BY g HAVING MEDIAN(v) > 6", sketch: {t: g}}
"""


def mapped_columns(**physical: str) -> dict[str, Any]:
    def field(name: str, stored: str) -> dict[str, Any]:
        mapped = {
            "delta.columnMapping.id": int(stored[-1]),
            "delta.columnMapping.physicalName": stored,
        }
        return handmade.field(name, "long", **mapped)

    return handmade.metadata([field(*column) for column in physical.items()], configuration=MAPPED)


@pytest.fixture
def touched_cli(tmp_path: Path, capsys: Capsys, spark: Any) -> Cli:
    """`v` passes in group 3; `w`, which replaces it later, in group 1."""
    table = tmp_path / "t"
    first = mapped_columns(g="col-1", v="col-2", w="col-3")
    handmade.commit(table, 0, handmade.protocol("columnMapping"), first)
    rows = pa.table({"col-1": [1, 3], "col-2": [0, 9], "col-3": [9, 0]})
    name = handmade.write_file(table, "a.parquet", rows)
    handmade.commit(table, 1, handmade.add(name, 2, (table / name).stat().st_size))
    cli = Cli.over(capsys, tmp_path, TOUCHED_WORKLOAD)
    assert cli.good("capture").results[0]["mode"] == "touch"
    return cli


def ranges(cli: Cli) -> tuple[int, ...]:
    return tuple(stored(cli.workload.parent, "q").sketches[0].ranges.ids)


def test_a_replaced_column_is_recaptured(touched_cli: Cli, tmp_path: Path) -> None:
    assert ranges(touched_cli) == (1,)
    handmade.commit(tmp_path / "t", 2, mapped_columns(g="col-1", v="col-3"))
    refused = touched_cli("maintain", "--policy", "incremental")
    assert refused.refusal == (7, "schema_changed")
    assert "`v` of table `t` between versions 1 and 2 was replaced" in refused.error["message"]
    result = touched_cli.one("maintain")
    assert (result["action"], result["reason_code"]) == ("recapture", "schema_changed")
    assert ranges(touched_cli) == (0,)
    assert len(touched_cli.verified(is_exact=False)) == 1


def test_an_unread_column_may_change(touched_cli: Cli, tmp_path: Path) -> None:
    handmade.commit(tmp_path / "t", 2, mapped_columns(g="col-1", v="col-2", w="col-4"))
    assert touched_cli.good("maintain").results[0]["action"] == "touch"
    assert ranges(touched_cli) == (1,)

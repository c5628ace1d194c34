"""The measures of what is kept: options first, then every way over the same small changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from impctl.app.measuring.ground import Ground
from impctl.app.measuring.registry import MEASURES
from impctl.app.measuring.state.simpler_choices import SIMPLER_CHOICES
from impctl.app.workbench.reporter import SilentReporter
from impctl.app.workbench.settings import Settings
from impctl.app.workbench.workbench import Workbench, open_workbench
from impctl.errors import WorkloadError
from impctl.tables.write.create import create_table
from impctl.workload.suite_models import OptionValue
from tests.support.measured_cells import cells_of, values
from tests.support.measured_cells import ground_of as any_ground

WORKLOAD = """\
version: 1
tables:
  items: {path: items}
  orders: {path: orders}
  shops: {path: shops}
partitions:
  items: {id: {ranges: 20}}
queries:
  sales:
    sql: >-
      SELECT city, SUM(items.amount) AS total FROM items JOIN orders ON items.order_id = orders.id
      JOIN shops ON orders.shop = shops.id GROUP BY city HAVING SUM(items.amount) > 20000
    sketch: {items: id}
spark: {master: "local[2]", conf: {spark.sql.shuffle.partitions: 4}}
"""
ITEMS, ORDERS, SHOPS = 6000, 2000, 40


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    folder = tmp_path_factory.mktemp("state")
    numbers = list(range(ITEMS))
    items = {
        "id": numbers,
        "order_id": [at % ORDERS for at in numbers],
        "amount": [at * 7919 % 100 for at in numbers],
    }
    orders = {"id": list(range(ORDERS)), "shop": [at * 31 % SHOPS for at in range(ORDERS)]}
    shops = {"id": list(range(SHOPS)), "city": [at % 10 for at in range(SHOPS)]}
    for name, columns in (("items", items), ("orders", orders), ("shops", shops)):
        create_table(str(folder / name), pa.table(columns))
    (folder / "w.yaml").write_text(WORKLOAD)
    with open_workbench(Settings(folder / "w.yaml"), SilentReporter()) as desk:
        yield desk


def ground(desk: Workbench, measure: str, **options: OptionValue) -> Ground:
    return any_ground(desk, measure, "sales", repeat=1, **options)


@pytest.mark.parametrize(
    ("measure", "options"),
    [
        ("state", {}),
        ("state", {"tables": ("nothing",)}),
        ("state", {"tables": ("items",), "shares": (0.5, 0.5)}),
        ("state", {"tables": ("items",), "come": (2,)}),
        ("state", {"tables": ("items",), "expected": (2,)}),
        ("state", {"tables": ("items",), "deletes": (2.0,)}),
        ("state", {"tables": ("items",), "late": True, "deletes": (0.5,)}),
        ("state", {"tables": ("items",), "ways": ("magic",)}),
        ("phases", {"tables": ("items",), "share": 0.5, "steps": 2}),
        ("phases", {}),
        ("processes", {"tables": ("items",), "share": 0.5}),
        ("processes", {"tables": ("items",), "ways": ("recapture",)}),
        ("processes", {"tables": ("items",), "changes": 3}),
        ("deadlines", {}),
        ("deadlines", {"tables": ("items",), "bounds": ("soon",)}),
        ("deadlines", {"tables": ("items",), "steps": 3, "share": 0.5}),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(
    desk: Workbench, measure: str, options: dict[str, Any]
) -> None:
    with pytest.raises(WorkloadError):
        MEASURES[measure].run(ground(desk, measure, **options))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_every_way_maintains_the_same_and_keeps_what_it_says(spark: Any, desk: Workbench) -> None:
    tables = ("items", "orders", "shops")
    ways = ("kept", "chosen", "read", "recapture", *SIMPLER_CHOICES)
    cells = cells_of(
        ground(desk, "state", tables=tables, shares=(0.02,), ways=ways, budgets=(0.3, 1))
    )
    assert all((cell.covers, cell.slack) == (True, 0) for cell in cells)
    within = {
        (cell.labels["way"], cell.labels["budget"]): values(cell)["stored_bytes"] for cell in cells
    }
    kept = within["kept", 1]
    assert within["recapture", 0] == 0
    assert 0 < within["read", 0] < kept / 2
    for way in ("chosen", *SIMPLER_CHOICES):
        # Groups are kept whatever the budget.
        assert within[way, 0.3] <= max(0.3 * kept, within["read", 0]) * 1.1
        assert within[way, 1] <= kept * 1.1


@pytest.mark.long
@pytest.mark.spark
def test_late_rows_come_one_after_the_other(spark: Any, desk: Workbench) -> None:
    options = ground(
        desk, "state", tables=("items", "orders"), shares=(0.2, 0.02), late=True, ways=("chosen",)
    )
    first, second = cells_of(options)
    assert [cell.labels["share"] for cell in (first, second)] == [0.2, 0.02]
    assert [first.note, second.note] == ["1,600 rows of 2 tables", "160 rows of 2 tables"]
    took = [values(cell) for cell in (first, second)]
    assert took[0]["capture_ms"] == took[1]["capture_ms"]
    assert took[0]["total_ms"] == pytest.approx(took[0]["capture_ms"] + took[0]["maintain_ms"])
    assert took[1]["total_ms"] == pytest.approx(took[0]["total_ms"] + took[1]["maintain_ms"])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("deletes", [0.5, 1.0])
def test_deletions_and_expectations_are_labels(spark: Any, desk: Workbench, deletes: float) -> None:
    cells = cells_of(
        ground(
            desk,
            "state",
            tables=("items", "orders"),
            shares=(0.02,),
            deletes=(0.0, deletes),
            come=(1, 2),
            expected=(1,),
            ways=("chosen",),
            budgets=(0.3,),
        )
    )
    assert [(cell.labels["deletes"], cell.labels["come"]) for cell in cells] == [
        (0.0, 1), (0.0, 2), (deletes, 1), (deletes, 2),
    ]  # fmt: skip
    assert all((cell.covers, cell.slack) == (True, 0) for cell in cells)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_what_is_kept_moves_with_the_tables_that_change(spark: Any, desk: Workbench) -> None:
    cells = cells_of(
        ground(desk, "phases", tables=("shops", "items"), steps=2, ways=("kept", "chosen"))
    )
    assert [(cell.labels["way"], cell.labels["table"]) for cell in cells] == [
        ("kept", "shops"), ("kept", "items"), ("chosen", "shops"), ("chosen", "items"),
    ]  # fmt: skip
    assert all((cell.covers, cell.slack) == (True, 0) for cell in cells)
    kept, chosen = (
        [values(cell)["stored_bytes"] for cell in cells if cell.labels["way"] == way]
        for way in ("kept", "chosen")
    )
    # Nothing asks for what only another table's changes would ask for.
    assert all(one < other for one, other in zip(chosen, kept, strict=True))
    converted = [values(cell)["convert_ms"] for cell in cells]
    assert converted[:2] == [0, 0]
    assert min(converted[2:]) > 0


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.slow
def test_processes_of_their_own_warm_and_cold(spark: Any, desk: Workbench) -> None:
    cells = cells_of(ground(desk, "processes", tables=("items",), share=0.01, budgets=(1, 0.3)))
    assert [(cell.labels["way"], cell.labels["budget"]) for cell in cells] == [
        ("kept", 1), ("chosen", 1), ("chosen", 0.3),
    ]  # fmt: skip
    for cell in cells:
        assert (cell.covers, cell.slack) == (True, 0)
        assert cell.metrics["process_ms"].runs == cell.metrics["cold_ms"].runs == 1
        assert cell.metrics["process_bytes"].median > 10_000_000


@pytest.mark.spark
def test_bounds_save_runs_and_are_held(spark: Any, desk: Workbench) -> None:
    options = ground(
        desk, "deadlines", tables=("items",), share=0.01, commits=300, bounds=("5m", "1h")
    )
    cells = cells_of(options)
    assert [cell.labels["trigger"] for cell in cells] == [
        "commit", "fresh_within: 5m", "fresh_within: 1h",
    ]  # fmt: skip
    every, some, few = map(values, cells)
    # A look comes after each commit, and now and then after two.
    assert 250 < every["runs_count"] <= 300
    assert 300 / 10 < some["runs_count"] < 300 / 3
    assert few["runs_count"] <= 300 / 50
    # What a step takes was measured here, on a machine that may be busy.
    assert all(one["work_ms"] > 0 for one in (every, some, few))
    assert every["age_ms"] < some["age_ms"] <= 300_000 < few["age_ms"] <= 3_600_000
    assert [one["late_share"] for one in (every, some, few)] == [0, 0, 0]
    assert all((cell.covers, cell.slack) == (True, 0) for cell in cells)

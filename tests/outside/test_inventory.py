"""Which change from outside is tested where, so that nothing is written twice or lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

INVENTORY = {
    "column added, dropped, renamed, retyped, widened, moved; used and not": "outside/test_schema",
    "the same in a table that maps names; mapping by id": "outside/test_schema",
    "columns of each change as rows": "tables/test_changes::test_changed_column_is_named",
    "NOT NULL or CHECK no longer promised": "outside/test_schema::test_a_constraint_is_dropped",
    "sign facts broken": "outside/test_schema::test_a_negative_value_that_came_and_went",
    "NULL and NaN facts, every kind": "service/test_prepare::test_inserted_rows_count",
    "table re-created": (
        "outside/test_history::test_created_anew_with_fewer_as_many_and_more_versions"
    ),
    "re-created between opening and reading": "outside/test_history",
    "vacuumed, log cleaned": "outside/test_history::test_lost_history_is_recaptured",
    "path moved": "outside/test_schema::move",
    "change feed off for a part": "outside/test_history::test_the_feed_is_on_for_a_part",
    "OPTIMIZE, Z-order": "outside/test_history::test_optimize_changes_nothing",
    "RESTORE": "outside/test_history::test_restore",
    "overwrite": "outside/test_history::test_other_commits_are_followed",
    "overwrite of a partition": "outside/test_schema::test_one_partition_is_overwritten",
    "deletion vectors": "outside/test_schema::test_tables_that_spark_wrote",
    "deletion vectors, partitions, in Spark": "behaviour/test_joins",
    "all of these maintained by touch, or by Spark": "outside/test_in_spark",
    "partition texts, special characters, NULL": "outside/test_schema::test_partition_columns",
    "damaged states": "outside/test_damage::test_a_damaged_state",
    "states exchanged": "outside/test_damage::test_states_of_two_queries_exchanged",
    "every byte of a state file": "store/test_disk",
    "newer format": "outside/test_damage::test_a_store_of_a_newer_format",
    "codes in text": "outside/test_damage",
}


@pytest.mark.parametrize("case", INVENTORY)
def test_the_test_is_there(case: str) -> None:
    file, _, name = INVENTORY[case].partition("::")
    text = (TESTS / f"{file}.py").read_text(encoding="utf-8")
    assert re.search(rf"^def {name or 'test_'}", text, re.MULTILINE)

"""What explain says of a fixpoint, and of a condition that stays above it."""

from __future__ import annotations

import pytest

from impctl.plan.nodes import Fixpoint, Select, nodes_of
from impctl.plan.recursion import recursion_notes
from impctl.rules.optimize import apply_rules
from tests.plan.network import CLOSURE, REACHED, plan_of

STAYS = "conditions on `x` apply to its first part, because no step changes these columns"
WHOLE = "its first part is every row of `links`, so the sketch of that part covers the whole table"
PAYS = (
    "updating is faster than deriving all rows again if a run deletes up to about 10% or inserts "
    "up to about 33% of the rows read"
)
LATE = (
    "checked after all rows are derived; if the step kept `y` unchanged, it could be checked at "
    "the start"
)


@pytest.mark.parametrize(
    ("sql", "fixpoint", "condition"),
    [
        (CLOSURE + "SELECT y FROM c", f"{STAYS}; {WHOLE}; {PAYS}", None),
        (CLOSURE + "SELECT y FROM c WHERE x = 1", f"{STAYS}; {PAYS}", None),
        (CLOSURE + "SELECT y FROM c WHERE y = 1", f"{STAYS}; {WHOLE}; {PAYS}", LATE),
        (CLOSURE + "SELECT y FROM c WHERE x = 1 AND y = 1", f"{STAYS}; {PAYS}", LATE),
        (REACHED + "SELECT n FROM r", PAYS, None),
        (
            "WITH RECURSIVE c(x, y) AS (SELECT src, dst FROM links WHERE cost = 1 "
            "UNION SELECT a.x, b.y FROM c a JOIN c b ON a.y = b.x) SELECT x FROM c",
            "a step reads it more than once, and all its rows each time",
            None,
        ),
    ],
)
def test_remarks(sql: str, fixpoint: str | None, condition: str | None) -> None:
    root = apply_rules(plan_of(sql))
    notes = recursion_notes(root)
    result = {type(node): notes[at] for at, node in enumerate(nodes_of(root)) if at in notes}
    expected = {Fixpoint: fixpoint, Select: condition}
    assert result == {kind: note for kind, note in expected.items() if note is not None}


def test_a_condition_on_stable_columns_that_stays_is_not_blamed() -> None:
    """A value drawn anew for each row stays, whatever columns it is held against."""
    root = apply_rules(plan_of(CLOSURE + "SELECT y FROM c WHERE x > rand()"))
    assert [note for note in recursion_notes(root).values() if note == LATE] == []


def test_plans_without_recursion_have_none() -> None:
    assert recursion_notes(apply_rules(plan_of("SELECT n FROM nodes WHERE n > 1"))) == {}

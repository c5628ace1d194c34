"""AVG becomes a sum, a count and a division, with Spark's types."""

from __future__ import annotations

import pytest

from impctl.data.schema import DOUBLE, LONG, decimal
from impctl.expr.nodes import Cast, Mean
from impctl.plan.nodes import Aggregate, Project, attributes_of, nodes_of
from impctl.rules.normalize import split_averages
from tests.plan.catalogs import plan_of
from tests.plan.golden_pairs import pairs


@pytest.mark.parametrize("sql", [sql for sql, _ in pairs("split_averages")])
def test_identities_stay_unique(sql: str) -> None:
    nodes = [
        n for n in nodes_of(split_averages(plan_of(sql))) if isinstance(n, Aggregate | Project)
    ]
    made = [attribute.id for node in nodes for attribute in attributes_of(node)]
    assert len(made) == len(set(made))


def test_integers_are_summed_as_doubles_and_decimals_as_decimals() -> None:
    split = split_averages(plan_of("SELECT avg(price), avg(cost) FROM sales"))
    assert isinstance(split, Project)
    assert isinstance(split.child, Aggregate)
    of_price, of_price_count, of_cost, _ = split.child.aggregates
    assert isinstance(of_price.call.arguments[0], Cast)
    assert of_price.attribute.type == DOUBLE
    assert of_price_count.attribute.type == LONG
    assert not of_price_count.attribute.nullable
    assert of_cost.attribute.type == decimal(20, 2)
    means = [output.expr for output in split.outputs]
    assert [mean.type for mean in means if isinstance(mean, Mean)] == [DOUBLE, decimal(14, 6)]

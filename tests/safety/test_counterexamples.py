"""Queries and data on which an unsafe sketch gives a wrong result, each refused for that reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import Struct, field

from impctl.data.schema import DOUBLE, INTEGER, LONG, STRING, Column, Schema, SqlType, decimal
from impctl.plan.nodes import Query
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.judge import Verdict, check_safety
from impctl.sql.statement import parse_query
from tests.plan.trials import Boundaries, accurate_sketches, instances_of
from tests.support.reference_plan import Value, annotate, bag, evaluate

Rows = Sequence[tuple[Value, ...]]


class Example(Struct, frozen=True):
    """Tables by name (columns, rows), a query, and a sketch per access: column, bounds, ids."""

    name: str
    tables: Mapping[str, tuple[str, Rows]]
    sql: str
    reason: str = ""
    sketches: Mapping[str, tuple[str, Boundaries, frozenset[int]]] = field(
        default_factory=lambda: {"t#1": ("p", (2,), frozenset({0}))}
    )
    facts: tuple[Fact, ...] = ()

    @property
    def partitions(self) -> dict[str, tuple[str, Boundaries]]:
        return {access: (column, bounds) for access, (column, bounds, _) in self.sketches.items()}

    @property
    def query(self) -> Query:
        return parse_query(self.sql, self.catalog())

    def catalog(self) -> dict[str, Schema]:
        def column(name: str, values: Sequence[Value]) -> Column:
            return Column(name, _type_of(values))

        return {
            name: Schema(tuple(map(column, columns.split(), zip(*rows, strict=True))))
            for name, (columns, rows) in self.tables.items()
        }

    def rows(self) -> dict[str, list[dict[str, Value]]]:
        return {
            name: [dict(zip(columns.split(), row, strict=True)) for row in rows]
            for name, (columns, rows) in self.tables.items()
        }

    def __str__(self) -> str:
        return self.name


def _type_of(values: Sequence[Value]) -> SqlType:
    known = [value for value in values if value is not None]
    if any(isinstance(value, str) for value in known):
        return STRING
    if any(isinstance(value, float) for value in known):
        return DOUBLE
    if any(isinstance(value, Decimal) for value in known):
        return decimal(10, 2)
    is_wide = any(isinstance(value, int) and abs(value) >= 2**31 for value in known)
    return LONG if is_wide else INTEGER


class _Loader(yaml.SafeLoader):
    """Also loads decimals, which have a tag."""


_Loader.add_constructor("!decimal", lambda loader, node: Decimal(loader.construct_scalar(node)))


def read_yaml(file: Path) -> Any:
    with file.open(encoding="utf-8") as text:
        return yaml.load(text, _Loader)


def tables_in(listed: Mapping[str, Any]) -> dict[str, tuple[str, Rows]]:
    """Tables by name, each listed as its columns followed by its rows."""
    return {name: (columns, tuple(map(tuple, rows))) for name, (columns, *rows) in listed.items()}


def _example(listed: dict[str, Any]) -> Example:
    listed["tables"] = tables_in(listed["tables"])
    if "sketches" in listed:
        sketches = listed["sketches"].items()
        listed["sketches"] = {a: (c, tuple(bounds), frozenset(i)) for a, (c, bounds, i) in sketches}
    facts = [
        (*of, FactKind(kind), FactSource(source)) for *of, kind, source in listed.get("facts", ())
    ]
    listed["facts"] = tuple(Fact(*fact) for fact in facts)
    return Example(**listed)


EXAMPLES = {
    section: [_example(one) for one in listed]
    for section, listed in read_yaml(Path(__file__).parent / "counterexamples.yaml").items()
}
UNSAFE = EXAMPLES["unsafe"]


def _results(example: Example) -> tuple[object, object, bool]:
    """Result over the tables, result over the sketch, and whether the sketch covers it."""
    root, tables, partitions = example.query.root, example.rows(), example.partitions
    sketches = {access: ids for access, (_, _, ids) in example.sketches.items()}
    result = annotate(root, tables)
    needed = accurate_sketches(result, root, tables, partitions, barriers=False)
    covers = all(needed[access] <= set(sketches[access]) for access in partitions)
    instances = instances_of(root, tables, partitions, sketches)
    return bag(row for row, _ in result.rows), bag(evaluate(root, tables, instances)), covers


def _verdict(example: Example) -> Verdict:
    sketched = {access: column for access, (column, _, _) in example.sketches.items()}
    return check_safety(example.query, sketched, example.facts)


@pytest.mark.parametrize("example", UNSAFE, ids=str)
def test_unsafe_is_refused_with_its_reason(example: Example) -> None:
    verdict = _verdict(example)
    assert not verdict.safe
    assert verdict.reason == example.reason
    assert verdict.span is not None


@pytest.mark.slow
@pytest.mark.parametrize("example", UNSAFE, ids=str)
def test_unsafe_sketches_change_the_result(example: Example) -> None:
    expected, sketched, covers = _results(example)
    assert covers, "the case proves nothing unless the sketch covers the provenance"
    assert expected != sketched


@pytest.mark.parametrize("example", EXAMPLES["first rows"], ids=str)
def test_nested_top_k_needs_its_rows_in_the_sketch(example: Example) -> None:
    verdict = _verdict(example)
    assert verdict.safe
    assert verdict.barriers == 1
    expected, sketched, covers = _results(example)
    assert covers
    assert expected != sketched, "without the first rows' lineage the result is wrong"

    root, tables, partitions = example.query.root, example.rows(), example.partitions
    result = annotate(root, tables)
    assert set(verdict.barrier_positions) == set(result.first_rows)
    sketches = accurate_sketches(result, root, tables, partitions)
    assert bag(evaluate(root, tables, instances_of(root, tables, partitions, sketches))) == expected


@pytest.mark.parametrize("example", EXAMPLES["uncovered"], ids=str)
def test_sketch_that_lacks_a_range_changes_the_result(example: Example) -> None:
    assert _verdict(example).safe
    expected, sketched, covers = _results(example)
    assert not covers
    assert expected != sketched


def test_facts_from_statistics_become_assumptions() -> None:
    # v >= 0 held at capture; then (A, 1, 5) and (A, 2, -9) were inserted.
    before = (("B", 1, 12), ("A", 1, 10), ("A", 2, 0))
    after = (*before, ("A", 1, 5), ("A", 2, -9))
    sql = "SELECT g, sum(v) FROM t GROUP BY g HAVING sum(v) > 11"
    assumed = (Fact("t", "v", FactKind.NONNEGATIVE, FactSource.STATISTICS),)
    first = Example("before", {"t": ("g p v", before)}, sql, facts=assumed)
    assert _verdict(first).assumptions == assumed
    assert _results(first)[0] == _results(first)[1]
    expected, sketched, covers = _results(Example("after", {"t": ("g p v", after)}, sql))
    assert covers
    assert expected != sketched


@pytest.mark.parametrize("example", EXAMPLES["controls"], ids=str)
def test_safe_controls_give_the_result(example: Example) -> None:
    assert _verdict(example).safe
    expected, sketched, covers = _results(example)
    assert covers
    assert expected
    assert expected == sketched

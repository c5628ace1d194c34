"""Partitions: boundaries that increase and are of one kind, or a number of fragments."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.random_cases import FEW

from .conftest import Load, Problems

NO_RESET = settings(FEW, suppress_health_check=[HealthCheck.function_scoped_fixture])


def section(partition: str) -> str:
    return f"partitions: {{sales: {{price: {partition}}}}}\n"


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("[601, 1001, 1501]", (601, 1001, 1501)),
        ("[1]", (1,)),
        ("[-1.5, 0, 2.5]", (-1.5, 0, 2.5)),
        ("[B, a, ä]", ("B", "a", "ä")),
        (
            "['9.5', '10.25', '123456789012345678901.5']",
            ("9.5", "10.25", "123456789012345678901.5"),
        ),
        ("['10', '9']", ("10", "9")),
        ("['2', '2.0']", ("2", "2.0")),
        ("[2022-01-01, 2022-02-01]", (date(2022, 1, 1), date(2022, 2, 1))),
        ("['2022-01-01', '2022-02-01']", ("2022-01-01", "2022-02-01")),
        (
            "[2022-01-01 00:00:00, 2022-01-01 00:00:01]",
            (datetime(2022, 1, 1), datetime(2022, 1, 1, 0, 0, 1)),
        ),
    ],
)
def test_boundaries(load_extra: Load, written: str, values: tuple[Any, ...]) -> None:
    (spec,) = load_extra(section(f"{{boundaries: {written}}}")).partitions
    assert spec.boundaries == values
    assert [type(value) for value in spec.boundaries] == [type(value) for value in values]
    assert (spec.table, spec.column, spec.ranges) == ("sales", "price", None)
    assert (spec.location.line, spec.location.column) == (4, 22)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("[]", "must have from 1 to 99999 values"),
        ("[1, 1]", "must increase, but number 2 does not"),
        ("[1, 3, 2]", "must increase, but number 3 does not"),
        ("[1, 1.0]", "must increase"),
        ("[b, a]", "must increase"),
        ("['10', '9', '10']", "must increase"),
        ("[2022-02-01, 2022-01-01]", "must increase"),
        ("[1, a]", "of one type, not numbers and text"),
        ("[1, '2']", "of one type, not numbers and text"),
        ("[2022-01-01, 2022-01-02 00:00:00]", "of one type, not dates and timestamps"),
        (
            "[2022-01-01 00:00:00, 2022-01-02 00:00:00Z]",
            "not timestamps and timestamps with a time zone",
        ),
        ("[1, null]", "must be a number, text or a date, not nothing"),
        ("[true]", "must be a number, text or a date, not true or false"),
        ("[1, [2]]", "must be a number, text or a date, not a list"),
        ("[1, .inf]", "is not finite"),
        ("[.nan]", "is not finite"),
        ("[0.10000000000000000001]", "more digits"),
        ("601", "must be a list, not a whole number"),
        ("{a: 1}", "must be a list, not a mapping"),
    ],
)
def test_boundaries_that_make_no_partition(
    extra_problems: Problems, written: str, message: str
) -> None:
    (result,) = extra_problems(section(f"{{boundaries: {written}}}"))
    assert message in result


def test_the_place_is_the_value_that_is_wrong(extra_problems: Problems) -> None:
    text = "partitions:\n  sales:\n    price:\n      boundaries:\n        - 2\n        - 1\n"
    assert extra_problems(text)[0].startswith("6:11 ")


@given(st.lists(st.integers() | st.floats(allow_nan=False, allow_infinity=False), min_size=1))
@NO_RESET
def test_any_increasing_numbers_are_boundaries_and_no_others(
    load_extra: Load, extra_problems: Problems, values: list[float]
) -> None:
    text = section(f"{{boundaries: {values!r}}}")
    increase = all(low < high for low, high in zip(values, values[1:], strict=False))
    if increase:
        assert load_extra(text).partitions[0].boundaries == tuple(values)
    else:
        assert "must increase" in extra_problems(text)[0]


@pytest.mark.parametrize("number", [1, 16, 100_000])
def test_ranges(load_extra: Load, number: int) -> None:
    (spec,) = load_extra(section(f"{{ranges: {number}}}")).partitions
    assert (spec.ranges, spec.boundaries) == (number, None)


def test_ranges_from_a_variable(load_extra: Load, extra_problems: Problems) -> None:
    text = "partitions:\n  sales:\n    price:\n      ranges: ${N:-16}\n"
    assert load_extra(text).partitions[0].ranges == 16
    assert load_extra(text, {"N": "8"}).partitions[0].ranges == 8
    assert "not text" in extra_problems(text, {"N": "many"})[0]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("0", "from 1 to 100000"),
        ("-1", "from 1 to 100000"),
        ("100001", "from 1 to 100000"),
        ("1.5", "a whole number, not a number"),
        ("'16'", "a whole number, not text"),
        ("true", "a whole number, not true or false"),
        ("", "a whole number, not nothing"),
        ("[1]", "a whole number, not a list"),
        ("016", "a whole number, not text"),
    ],
)
def test_ranges_that_are_none(extra_problems: Problems, written: str, message: str) -> None:
    (result,) = extra_problems(section(f"{{ranges: {written}}}"))
    assert message in result


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (section("{}"), "either `boundaries` or `ranges`"),
        (section("{boundaries: [1], ranges: 2}"), "either `boundaries` or `ranges`"),
        (section("16"), "must be a mapping, not a whole number"),
        (section("{fragment: 2}"), "did you mean `fragments`?"),
        ("partitions: {sales: {}}", "`partitions.sales` is empty"),
        ("partitions: {sales: }", "must be a mapping, not nothing"),
        ("partitions: []", "must be a mapping, not a list"),
        (
            "partitions: {shops: {a: {ranges: 2}}}",
            "Table `shops` in `partitions` is not declared",
        ),
        ("partitions: {salez: {a: {ranges: 2}}}", "did you mean `sales`?"),
        (
            "partitions: {sales: {'': {ranges: 2}}}",
            "A column name in `partitions.sales` is empty",
        ),
        ("partitions: {sales: {a: {ranges: 2}, A: {ranges: 2}}}", "are the same column"),
    ],
)
def test_partitions_that_make_no_sense(extra_problems: Problems, text: str, message: str) -> None:
    assert any(message in result for result in extra_problems(text + "\n"))


def test_no_partitions(load_extra: Load) -> None:
    assert load_extra("partitions: {}\n").partitions == ()


def test_the_old_name_of_the_key_is_accepted(load_extra: Load, extra_problems: Problems) -> None:
    (spec,) = load_extra(section("{fragments: 16}")).partitions
    assert (spec.ranges, spec.is_old_key) == (16, True)
    (spec,) = load_extra(section("{ranges: 16}")).partitions
    assert (spec.ranges, spec.is_old_key) == (16, False)
    (result,) = extra_problems(section("{fragments: 16, ranges: 16}"))
    assert "either `boundaries` or `ranges`" in result

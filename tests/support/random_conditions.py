"""Random conditions over columns of every kind, each with its meaning as a Python function.

Law: text and meaning are built side by side, so that nothing of impctl is asked what a text means.
True, False and None are the three outcomes; NaN equals itself and is the greatest, -0.0 is 0.0.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from math import copysign, inf, isnan, nan

import pyarrow as pa

Row = Mapping[str, object]
Truth = bool | None

KINDS: Mapping[str, tuple[pa.DataType, Sequence[object]]] = {
    "o": (pa.bool_(), [True, False]),
    "y": (pa.int8(), [1, -128, 7]),
    "h": (pa.int16(), [1, -3, 300]),
    "i": (pa.int32(), [1, 2, -3]),
    "l": (pa.int64(), [2**53, 2**53 + 1, -(2**63)]),
    "f": (pa.float32(), [1.5, 0.0, -0.0, nan, inf]),
    "d": (pa.float64(), [1.5, 0.0, -0.0, nan, copysign(nan, -1.0), -inf]),
    "s": (pa.string(), ["a", "B", "b c", "ü'%/=", "NULL", "1"]),
    "t": (pa.date32(), [date(2024, 1, 1), date(1969, 7, 20), date(1, 1, 1)]),
    "n": (pa.timestamp("us"), [datetime(2024, 1, 1, 2, 3, 4, 5), datetime(1969, 7, 20)]),
}
"""Column name to type and values; each name stands for a partition column `p_` and another `x_`."""


@dataclass(frozen=True)
class Condition:
    text: str
    of: Callable[[Row], Truth]
    """What it is on a row."""


@dataclass(frozen=True)
class Drawer:
    """Draws conditions over these columns; the letter after `_` is the kind."""

    random: random.Random
    columns: Sequence[str]

    def condition(self, depth: int = 0) -> Condition:
        share = self.random.random()
        if depth > 2 or share < 0.35:
            return self._atom()
        left = self.condition(depth + 1)
        if share < 0.5:
            return _is(left, self.random.choice([True, False, None]), self.random.random() < 0.5)
        if share < 0.6:
            return Condition(f"NOT ({left.text})", lambda row: _not(left.of(row)))
        right = self.condition(depth + 1)
        if share < 0.75:
            return Condition(
                f"({left.text}) AND ({right.text})",
                lambda row: _not(_or(_not(left.of(row)), _not(right.of(row)))),
            )
        if share < 0.9:
            return Condition(
                f"({left.text}) OR ({right.text})", lambda row: _or(left.of(row), right.of(row))
            )
        if share < 0.94:
            return Condition(
                f"({left.text}) <=> ({right.text})", lambda row: left.of(row) is right.of(row)
            )
        if share < 0.97:
            return Condition(
                f"coalesce({left.text}, {right.text})",
                lambda row: right.of(row) if left.of(row) is None else left.of(row),
            )
        last = self._atom()
        return Condition(
            f"CASE WHEN {left.text} THEN {right.text} ELSE {last.text} END",
            lambda row: right.of(row) if left.of(row) is True else last.of(row),
        )

    def _atom(self) -> Condition:
        name = self.random.choice(self.columns)
        share = self.random.random()
        if share < 0.15:
            return Condition(f"{name} IS NULL", lambda row: row[name] is None)
        if share < 0.3 and name[-1] not in "fd":
            return self._in_list(name)
        op = self.random.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
        beside = [other for other in self.columns if other[-1] == name[-1]]
        value = self._value(name[-1]) if share < 0.8 else None
        if share < 0.75 and value is not None:
            text = _literal(name[-1], value)
            return Condition(f"{name} {op} {text}", lambda row: _compared(op, row[name], value))
        if share < 0.8:
            return Condition(f"{name} {op} NULL", lambda row: _compared(op, row[name], None))
        other = self.random.choice(beside)
        return Condition(f"{name} {op} {other}", lambda row: _compared(op, row[name], row[other]))

    def _in_list(self, name: str) -> Condition:
        values = [self._value(name[-1]) for _ in range(self.random.choice([1, 2, 3]))]
        texts = ", ".join(_literal(name[-1], value) for value in values)
        word = self.random.choice(["IN", "NOT IN"])

        def of(row: Row) -> Truth:
            truth: Truth = False
            for value in values:
                truth = _or(truth, _compared("=", row[name], value))
            return truth if word == "IN" else _not(truth)

        return Condition(f"{name} {word} ({texts})", of)

    def _value(self, kind: str) -> object:
        drawn = self.random.choice(KINDS[kind][1])
        # There is no literal of these without a cast of a text.
        return 1.5 if isinstance(drawn, float) and (isnan(drawn) or drawn in (inf, -inf)) else drawn


def rows_of(random_: random.Random, columns: Sequence[str], count: int) -> pa.Table:
    """Random rows of these columns, NULL among them, numbered in `row`."""
    drawn = {}
    for name in columns:
        kind, values = KINDS[name[-1]]
        cells = [random_.choice([*values, None]) for _ in range(count)]
        drawn[name] = pa.array(cells, kind)
    return pa.table({**drawn, "row": pa.array(range(count), pa.int64())})


def _is(inner: Condition, wanted: Truth, is_negated: bool) -> Condition:
    word = "NULL" if wanted is None else str(wanted).upper()
    negation = "NOT " if is_negated else ""
    return Condition(
        f"({inner.text}) IS {negation}{word}",
        lambda row: (inner.of(row) is wanted) != is_negated,
    )


def _not(value: Truth) -> Truth:
    return None if value is None else not value


def _or(left: Truth, right: Truth) -> Truth:
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


def _compared(op: str, left: object, right: object) -> Truth:
    if op == "<=>":
        return (left is None and right is None) or _compared("=", left, right) is True
    if left is None or right is None:
        return None
    a, b = _key(left), _key(right)
    outcomes = {"=": a == b, "<>": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}
    return outcomes[op]


def _key(value: object) -> tuple[bool, object]:
    """By which values are equal and ordered as in Spark, of one kind each."""
    if isinstance(value, float) and isnan(value):
        return (True, 0.0)
    return (False, value.encode() if isinstance(value, str) else value)


def _literal(kind: str, value: object) -> str:
    match value:
        case bool():
            return str(value).upper()
        case float():
            return (
                f"{'-' if copysign(1, value) < 0 else ''}{abs(value)}{'F' if kind == 'f' else 'e0'}"
            )
        case str():
            return "'" + value.replace("'", "\\'") + "'"
        case datetime():
            return f"TIMESTAMP_NTZ '{value}'"
        case date():
            return f"DATE '{value.isoformat()}'"
        case _:
            return "(-9223372036854775807 - 1)" if value == -(2**63) else str(value)

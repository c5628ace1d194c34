"""Queries and data on which an unsafe sketch gives a wrong answer, each refused for that reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal

import pytest
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.data.schema import DOUBLE, INTEGER, LONG, STRING, Column, Schema, SqlType, decimal
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
        default_factory=lambda: P1
    )
    facts: tuple[Fact, ...] = ()

    def catalog(self) -> dict[str, Schema]:
        return {
            name: Schema(
                tuple(
                    Column(column, _type_of([row[i] for row in rows]))
                    for i, column in enumerate(columns.split())
                )
            )
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


CITIES = (
    "popden city state",
    (
        (4200, "Anchorage", "AK"),
        (6000, "San Diego", "CA"),
        (5000, "Sacramento", "CA"),
        (7000, "New York", "NY"),
        (2000, "Buffalo", "NY"),
        (3700, "Austin", "TX"),
        (2500, "Houston", "TX"),
    ),
)
SIGNED = ("g p v", (("A", 1, 10), ("A", 2, -8), ("B", 1, 5)))
COUNTED = ("g p", (("A", 1), ("A", 2), ("A", 2), ("B", 1)))
P1 = {"t#1": ("p", (2,), frozenset({0}))}
NONNEGATIVE_V = (Fact("t", "v", FactKind.NONNEGATIVE, FactSource.STATISTICS),)


def differs(compared: str, how: str = "larger or smaller", *, because: str = "") -> str:
    """The reason that most of the examples are refused for."""
    reason = f"{compared}, which can be {how} over part of a group than over all of it"
    return f"{reason}, because {because}" if because else reason


UNSAFE = (
    Example(
        "CE-1 top-1 by avg",
        {"cities": CITIES},
        "SELECT state, avg(popden) FROM cities GROUP BY state ORDER BY avg(popden) DESC, state"
        " LIMIT 1",
        differs("ORDER BY ranks by `avg(popden)`"),
        sketches={"cities#1": ("popden", (4001,), frozenset({1}))},
    ),
    Example(
        "CE-2 sum with negatives",
        {"t": SIGNED},
        "SELECT g, sum(v) FROM t GROUP BY g HAVING sum(v) > 4",
        differs("HAVING compares `sum(v)`", because="it is not known that `v` is never negative"),
    ),
    Example(
        "CE-3 count upper bound",
        {"t": COUNTED},
        "SELECT g, count(*) FROM t GROUP BY g HAVING count(*) <= 1",
        differs("HAVING compares `count(*)`", "smaller"),
    ),
    Example(
        "CE-4 bottom-k",
        {"t": COUNTED},
        "SELECT g, count(*) AS n FROM t GROUP BY g ORDER BY n, g LIMIT 1",
        differs("ORDER BY ranks by `count(*)`", "smaller"),
    ),
    Example(
        "CE-5 min lower bound",
        {"t": ("g p v", (("A", 1, 9), ("A", 2, 1), ("B", 1, 8)))},
        "SELECT g, min(v) FROM t GROUP BY g HAVING min(v) > 5",
        differs("HAVING compares `min(v)`", "larger"),
    ),
    Example(
        "CE-5 top-1 by min",
        {"t": ("g p v", (("A", 1, 9), ("A", 2, 1), ("B", 1, 8)))},
        "SELECT g, min(v) AS m FROM t GROUP BY g ORDER BY m DESC, g LIMIT 1",
        differs("ORDER BY ranks by `min(v)`", "larger"),
    ),
    Example(
        "CE-6 max upper bound",
        {"t": ("g p v", (("A", 1, 1), ("A", 2, 9), ("B", 1, 2)))},
        "SELECT g, max(v) FROM t GROUP BY g HAVING max(v) < 5",
        differs("HAVING compares `max(v)`", "smaller"),
    ),
    Example(
        "CE-9a distinct on an aggregate",
        {
            "t": (
                "h g p",
                (
                    ("h1", "g1", 1),
                    ("h1", "g2", 1),
                    ("h1", "g2", 1),
                    ("h2", "g3", 1),
                    ("h2", "g3", 2),
                    ("h2", "g4", 1),
                    ("h2", "g4", 1),
                ),
            )
        },
        "SELECT h, count(*) FROM (SELECT DISTINCT h, n FROM (SELECT h, g, count(*) AS n FROM t"
        " GROUP BY h, g) a) b GROUP BY h HAVING count(*) > 1",
        "DISTINCT compares values that can differ over part of a group",
    ),
    Example(
        "CE-9b grouping by an aggregate",
        {"t": ("g p", (("g1", 1), ("g2", 1), ("g3", 1), ("g3", 2)))},
        "SELECT n, count(*) FROM (SELECT g, count(*) AS n FROM t GROUP BY g) a GROUP BY n"
        " HAVING count(*) = 2",
        "GROUP BY uses `count(*)`, whose value over some rows can differ from its value over all "
        "of them",
    ),
    Example(
        "CE-10 left join",
        {"l": ("a", ((1,), (2,))), "r": ("b", ((2,),))},
        "SELECT a FROM l LEFT JOIN r ON a = b WHERE b IS NULL",
        "LEFT JOIN keeps rows without a match, and a sketch could hide a match",
        sketches={"r#1": ("b", (5,), frozenset())},
    ),
    Example(
        "CE-10 not exists",
        {"l": ("a", ((1,), (2,))), "r": ("b", ((2,),))},
        "SELECT a FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.b = l.a)",
        "NOT EXISTS or NOT IN keeps rows without a match, and a sketch could hide a match",
        sketches={"r#1": ("b", (5,), frozenset())},
    ),
    Example(
        "CE-10 except",
        {"l": ("a", ((1,), (2,))), "r": ("b", ((2,),))},
        "SELECT a FROM l EXCEPT SELECT b FROM r",
        "EXCEPT keeps rows that are not on its right side, and a sketch could hide rows there",
        sketches={"r#1": ("b", (5,), frozenset())},
    ),
    Example(
        "CE-13 union with a grouping attribute",
        {"u1": ("g", ((1,), (1,), (1,))), "u2": ("g", ((1,), (2,)))},
        "SELECT g, count(*) FROM (SELECT g FROM u1 UNION ALL SELECT g FROM u2) a GROUP BY g"
        " HAVING count(*) < 3",
        differs("HAVING compares `count(*)`", "smaller"),
        sketches={"u1#1": ("g", (5,), frozenset()), "u2#1": ("g", (3,), frozenset({0}))},
    ),
    Example(
        "CE-13 union with one branch unsketched",
        {"u1": ("g", ((1,), (1,), (1,))), "u2": ("g", ((1,), (2,)))},
        "SELECT g, count(*) FROM (SELECT g FROM u1 UNION ALL SELECT g FROM u2) a GROUP BY g"
        " HAVING count(*) < 3",
        differs("HAVING compares `count(*)`", "smaller"),
        sketches={"u1#1": ("g", (5,), frozenset())},
    ),
    Example(
        "CE-19 nulls first",
        {"t": ("g p v", (("A", 2, 5), ("B", 1, 10), ("B", 2, None)))},
        "SELECT g, min(v) FROM t GROUP BY g ORDER BY min(v) ASC NULLS FIRST, g LIMIT 1",
        "ORDER BY puts NULLs first, and `min(v)` can be NULL over part of a group but not over "
        "all of it",
        sketches={"t#1": ("p", (2,), frozenset({1}))},
    ),
    Example(
        "CE-20 tie broken by a count",
        {"t": ("g p v", (("A", 1, 5), ("A", 1, 0), ("B", 1, 5), ("B", 2, 0), ("B", 2, 0)))},
        "SELECT g, sum(v), count(*) FROM t GROUP BY g ORDER BY sum(v) DESC, count(*) LIMIT 1",
        differs("ORDER BY ranks by `count(*)`", "smaller"),
        facts=NONNEGATIVE_V,
    ),
    Example(
        "CE-26 a constant that lets negatives through",
        {"t": SIGNED},
        "SELECT g, sum(v) FROM t WHERE v > -100 GROUP BY g HAVING sum(v) > 4",
        differs("HAVING compares `sum(v)`", because="it is not known that `v` is never negative"),
    ),
    Example(
        "CE-30 above the largest of a group",
        {"r": ("k x", ((1, 5), (2, 5))), "s": ("k p y", ((1, 1, 3), (2, 1, 4), (2, 2, 9)))},
        "SELECT r.k FROM r JOIN (SELECT k, max(y) AS m FROM s GROUP BY k) a ON r.k = a.k"
        " WHERE r.x > a.m",
        differs("WHERE compares `max(y)`", "smaller"),
        sketches={"s#1": ("p", (2,), frozenset({0}))},
    ),
    Example(
        "CE-31 window",
        {"t": ("id p v", ((0, 1, 1), (1, 2, 5), (2, 1, 1)))},
        "SELECT id FROM (SELECT id, sum(v) OVER (ORDER BY id) AS run FROM t) a WHERE run <= 2",
        "the sketch would give window function `sum(v) OVER (ORDER BY id)` incomplete partitions",
    ),
    Example(
        "CE-32 count equality",
        {"t": ("g p", (("A", 1), ("A", 2), ("B", 1)))},
        "SELECT g, count(*) FROM t GROUP BY g HAVING count(*) = 1",
        differs("HAVING compares `count(*)`", "smaller"),
    ),
    Example(
        "CE-33 conjunction with avg",
        {
            "t": (
                "g p v",
                (
                    ("A", 1, 10),
                    ("A", 2, 0),
                    ("A", 2, 0),
                    ("A", 1, 2),
                    ("B", 1, 9),
                    ("B", 1, 9),
                    ("B", 1, 9),
                ),
            )
        },
        "SELECT g, count(*), avg(v) FROM t GROUP BY g HAVING count(*) >= 2 AND avg(v) >= 5",
        differs("HAVING compares `avg(v)`"),
    ),
)


WIDE = 2**53

CORNERS = (
    Example(
        "minus NaN is NaN",
        {"t": ("g p d", (("A", 1, 3.0), ("A", 2, math.nan), ("B", 1, 5.0)))},
        "SELECT g, max(d) FROM t GROUP BY g HAVING -max(d) < 0",
        differs("HAVING compares `-max(d)`"),
    ),
    Example(
        "infinity minus infinity",
        {
            "t": (
                "g p d e",
                (("A", 1, math.inf, -math.inf), ("A", 2, 0.0, 5.0), ("B", 1, math.nan, 1.0)),
            )
        },
        "SELECT g, max(d), max(e) FROM t GROUP BY g ORDER BY max(d) + max(e) DESC, g LIMIT 1",
        differs("ORDER BY ranks by `max(d) + max(e)`"),
    ),
    Example(
        "NaN in a sum that is never positive otherwise",
        {"t": ("g p d", (("A", 1, -3.0), ("A", 2, math.nan), ("B", 1, -5.0)))},
        "SELECT g, sum(d) FROM t GROUP BY g HAVING sum(d) < 0",
        differs("HAVING compares `sum(d)`", because="it is not known that `d` is never negative"),
        facts=(Fact("t", "d", FactKind.NONPOSITIVE, FactSource.STATISTICS),),
    ),
    Example(
        "equality after a cast that rounds",
        {"t": ("p", ((WIDE,), (WIDE + 1,))), "u": ("q", ((float(WIDE),),))},
        "SELECT q, max(p) FROM t JOIN u ON p = q GROUP BY q HAVING max(p) <= 9007199254740992",
        differs("HAVING compares `max(p)`", "smaller"),
        sketches={"t#1": ("p", (WIDE + 1,), frozenset({0}))},
    ),
    Example(
        "grouped on the key of one access only",
        {"t": ("g", (("A",), ("B",))), "u": ("h p v", (("A", 1, 9), ("A", 2, 1), ("B", 1, 8)))},
        "SELECT g, avg(v) FROM t JOIN u ON g = h GROUP BY g HAVING avg(v) > 7",
        differs("HAVING compares `avg(v)`"),
        sketches={"t#1": ("g", ("B",), frozenset({0, 1})), "u#1": ("p", (2,), frozenset({0}))},
    ),
    Example(
        "grouping sets that leave the key out",
        {"t": ("g h", (("B", "x"), ("A", "x"), ("A", "w"), ("A", "w")))},
        "SELECT g, h, count(*) FROM t GROUP BY GROUPING SETS ((g), (h)) HAVING count(*) = 1",
        differs("HAVING compares `count(*)`", "smaller"),
        sketches={"t#1": ("g", ("B",), frozenset({1}))},
    ),
    Example(
        "coalesce fills in for what is missing",
        {"t": ("g p v", (("A", 1, None), ("A", 2, 1), ("B", 1, 9)))},
        "SELECT g, max(v) FROM t GROUP BY g HAVING coalesce(max(v), 5) > 3",
        differs("HAVING compares `coalesce(max(v), 5)`"),
    ),
    Example(
        "IS NULL becomes true over part of a group",
        {"t": ("g p v", (("A", 1, None), ("A", 2, 1), ("B", 1, None)))},
        "SELECT g, max(v) FROM t GROUP BY g HAVING max(v) IS NULL",
        "HAVING tests `max(v)` for NULL, and it can be NULL over part of a group but not over all "
        "of it",
    ),
    Example(
        "a sum of absolute values of sums",
        {"t": ("h g p v", (("x", "A", 1, 9), ("x", "A", 2, -9), ("y", "B", 1, 7)))},
        "SELECT h, sum(abs(s)) FROM (SELECT h, g, sum(v) AS s FROM t GROUP BY h, g) a GROUP BY h"
        " HAVING sum(abs(s)) > 5",
        differs("HAVING compares `sum(abs(s))`"),
    ),
    Example(
        "NOT turns the comparison round",
        {"t": ("g p", (("A", 1), ("A", 2), ("B", 1)))},
        "SELECT g, count(*) FROM t GROUP BY g HAVING NOT (count(*) >= 2 OR g = 'Z')",
        differs("HAVING compares `count(*)`", "smaller"),
    ),
    Example(
        "BETWEEN has an upper end",
        {"t": ("g p", (("A", 1), ("A", 2), ("B", 1)))},
        "SELECT g, count(*) FROM t GROUP BY g HAVING count(*) BETWEEN 1 AND 1",
        differs("HAVING compares `count(*)`", "smaller"),
    ),
    Example(
        "FILTER on an aggregate of a subquery",
        {"t": ("h g p", (("x", "A", 1), ("x", "A", 2), ("y", "B", 1)))},
        "SELECT h, count(*) FILTER (WHERE n < 2) AS few FROM (SELECT h, g, count(*) AS n FROM t"
        " GROUP BY h, g) a GROUP BY h HAVING count(*) FILTER (WHERE n < 2) >= 1",
        differs(
            "HAVING compares `count(*) FILTER (WHERE n < 2)`", because="its FILTER reads `n < 2`"
        ),
    ),
    Example(
        "intersect on values of a group",
        {"t": ("g p", (("A", 1), ("A", 2), ("B", 1))), "u": ("h n", (("A", 1), ("B", 1)))},
        "SELECT g, count(*) FROM t GROUP BY g INTERSECT SELECT h, n FROM u",
        "INTERSECT compares values that can differ when some rows are missing",
    ),
    Example(
        "IN a subquery of values of groups",
        {"l": ("a", ((1,), (2,))), "t": ("g p v", (("A", 1, 1), ("A", 2, 5), ("B", 1, 2)))},
        "SELECT a FROM l WHERE a IN (SELECT max(v) FROM t GROUP BY g)",
        differs("The join compares `max(v)`", "smaller"),
    ),
    Example(
        "rank by what can grow",
        {"t": ("g p v", (("A", 1, 9), ("A", 2, 1), ("B", 1, 8)))},
        "SELECT * FROM (SELECT g, m, rank() OVER (ORDER BY m DESC) AS r FROM (SELECT g, min(v) AS m"
        " FROM t GROUP BY g) a) b WHERE r <= 1",
        differs("ORDER BY ranks by `min(v)`", "larger"),
    ),
    Example(
        "a sum of opposite infinities is NaN, also where it is taken from 0",
        {"t": ("g p d e", (("A", 1, 5.0, 1.0), ("A", 2, math.inf, -math.inf), ("B", 1, 5.0, 2.0)))},
        "SELECT g, sum(0 - (d + e)) FROM t WHERE d + e >= 0 GROUP BY g"
        " HAVING sum(0 - (d + e)) < -3",
        differs(
            "HAVING compares `sum(0 - (d + e))`",
            because="it is not known that `0 - (d + e)` is never negative",
        ),
        facts=(
            Fact("t", "d", FactKind.NAN_FREE, FactSource.STATISTICS),
            Fact("t", "e", FactKind.NAN_FREE, FactSource.STATISTICS),
        ),
    ),
    Example(
        "NaN is at most NaN",
        {"t": ("g p d e", (("A", 1, 5.0, 9.0), ("A", 2, math.nan, math.nan), ("B", 1, 5.0, 9.0)))},
        "SELECT g, sum(0 - d) FROM t WHERE d >= 0 AND d <= e GROUP BY g HAVING sum(0 - d) < -3",
        differs(
            "HAVING compares `sum(0 - d)`", because="it is not known that `0 - d` is never negative"
        ),
    ),
    Example(
        "a count of rows with a partner in a keyed subquery",
        {"t": ("g", ((1,), (2,))), "u": ("h q", (("A", 1), ("A", 2), ("B", 2)))},
        "SELECT h, count(*) FROM u WHERE q IN (SELECT g FROM t) GROUP BY h HAVING count(*) < 2",
        differs("HAVING compares `count(*)`", "smaller"),
        sketches={"t#1": ("g", (2,), frozenset({1}))},
    ),
    Example(
        "NULLs first where an outer join pads a column that is never NULL",
        {"t": ("g p v", (("A", 1, 9), ("A", 2, 1), ("B", 1, 2))), "u": ("k w", ((1, 5), (2, 1)))},
        "SELECT t.g, min(u.w) FROM t LEFT JOIN u ON t.v = u.k GROUP BY t.g"
        " ORDER BY min(u.w) ASC NULLS FIRST, t.g LIMIT 1",
        "ORDER BY puts NULLs first, and `min(u.w)` can be NULL over part of a group but not over "
        "all of it",
        facts=(Fact("u", "w", FactKind.NOT_NULL, FactSource.CONSTRAINT),),
    ),
    Example(
        "anti join on a count over part of a group",
        {"t": ("g p", (("A", 1), ("A", 2), ("B", 1))), "u": ("k", ((2,),))},
        "SELECT g FROM (SELECT g, count(*) AS n FROM t GROUP BY g) q WHERE NOT EXISTS"
        " (SELECT 1 FROM u WHERE u.k = q.n)",
        "NOT EXISTS or NOT IN matches on `u.k = q.n`, whose value over some rows can differ from "
        "its value over all of them",
    ),
    Example(
        "full join with a sketch on its right side",
        {"l": ("a", ((1,), (2,))), "r": ("b", ((2,),))},
        "SELECT a FROM l FULL JOIN r ON a = b WHERE b IS NULL",
        "FULL JOIN keeps rows without a match, and a sketch could hide a match",
        sketches={"r#1": ("b", (5,), frozenset())},
    ),
    Example(
        "full join with a sketch on its left side",
        {"l": ("a", ((1,), (2,))), "r": ("b", ((2,),))},
        "SELECT b FROM r FULL JOIN l ON a = b WHERE a IS NULL",
        "FULL JOIN keeps rows without a match, and a sketch could hide a match",
        sketches={"l#1": ("a", (5,), frozenset())},
    ),
    Example(
        "NULLs first where a full join pads a column that is never NULL",
        {
            "t": ("g p v", (("A", 1, 9), ("A", 2, 1), ("B", 1, 2))),
            "l": ("a w", ((1, 5), (2, 1))),
            "r": ("b", ((1,), (2,), (9,))),
        },
        "SELECT t.g, min(l.w) FROM l FULL JOIN r ON l.a = r.b JOIN t ON t.v = r.b GROUP BY t.g"
        " ORDER BY min(l.w) ASC NULLS FIRST, t.g LIMIT 1",
        "ORDER BY puts NULLs first, and `min(l.w)` can be NULL over part of a group but not over "
        "all of it",
        facts=(Fact("l", "w", FactKind.NOT_NULL, FactSource.CONSTRAINT),),
    ),
    Example(
        "what a condition says of an expression, where the row is padded with NULL",
        {
            "t": ("g p v", (("A", 1, 1), ("A", 2, 9), ("A", 2, 9), ("B", 1, 1))),
            "u": ("k w", ((1, 5),)),
            "x": ("k", ((1,),)),
        },
        "SELECT t.g, sum(coalesce(u.w, -1)) FROM u JOIN x ON u.k = x.k AND coalesce(u.w, -1) >= 0"
        " RIGHT JOIN t ON t.v = u.k GROUP BY t.g HAVING sum(coalesce(u.w, -1)) > 3",
        differs(
            "HAVING compares `sum(coalesce(u.w, -1))`",
            because="it is not known that `coalesce(u.w, -1)` is never negative",
        ),
    ),
    Example(
        "a union of values that are never negative and of others",
        {"t": ("g p v", (("A", 1, 10), ("B", 1, 5))), "u": ("h q w", (("A", 1, -8),))},
        "SELECT g, sum(v) FROM (SELECT g, v FROM t WHERE v > 0 UNION ALL SELECT h, w FROM u) q"
        " GROUP BY g HAVING sum(v) > 4",
        differs("HAVING compares `sum(v)`", because="it is not known that `v` is never negative"),
        sketches={"u#1": ("q", (5,), frozenset())},
    ),
    Example(
        "a count of what a keyed side also has",
        {"t": ("g", ((1,), (2,))), "u": ("q", ((1,), (2,)))},
        "SELECT count(*) FROM (SELECT q FROM u INTERSECT SELECT g FROM t) a HAVING count(*) < 2",
        differs("HAVING compares `count(*)`", "smaller"),
        sketches={"t#1": ("g", (2,), frozenset({1}))},
    ),
    Example(
        "a key that a set operation casts to another type",
        {"t": ("g", ((WIDE,), (WIDE + 1,))), "u": ("d", ((0.0,),))},
        "SELECT g, count(*) FROM (SELECT g FROM t EXCEPT ALL SELECT d FROM u) a GROUP BY g"
        " HAVING count(*) < 2",
        differs("HAVING compares `count(*)`", "smaller"),
        sketches={"t#1": ("g", (WIDE + 1,), frozenset({0}))},
    ),
    Example(
        "distinct pairs of which one part can differ",
        {
            "t": (
                "h g p",
                (
                    ("x", 1, 1),
                    ("x", 1, 1),
                    ("x", 2, 1),
                    ("x", 2, 2),
                    ("y", 3, 1),
                    ("y", 4, 1),
                    ("y", 4, 1),
                ),
            )
        },
        "SELECT h, count(DISTINCT h, n) FROM (SELECT h, g, count(*) AS n FROM t GROUP BY h, g) a"
        " GROUP BY h HAVING count(DISTINCT h, n) >= 2",
        differs(
            "HAVING compares `count(DISTINCT h, n)`",
            because="it counts distinct values that may differ",
        ),
    ),
    Example(
        "count_if of values that can differ",
        {"t": ("h g p", (("x", "A", 1), ("x", "A", 2), ("y", "B", 1)))},
        "SELECT h, count_if(n < 2) FROM (SELECT h, g, count(*) AS n FROM t GROUP BY h, g) a"
        " GROUP BY h HAVING count_if(n < 2) >= 1",
        differs("HAVING compares `count_if(n < 2)`"),
    ),
    Example(
        "a sum of least values",
        {"t": ("h g p v", (("x", "A", 1, 5), ("x", "A", 2, 0), ("y", "B", 1, 7)))},
        "SELECT h, sum(m) FROM (SELECT h, g, min(v) AS m FROM t GROUP BY h, g) a GROUP BY h"
        " HAVING sum(m) > 3",
        differs("HAVING compares `sum(m)`"),
        facts=(Fact("t", "v", FactKind.NONNEGATIVE, FactSource.CONSTRAINT),),
    ),
)


RARE_CORNERS = (
    Example(
        "a sum over no rows is NULL, which coalesce replaces",
        {"t": ("p v", ((1, 3), (2, 0)))},
        "SELECT s FROM (SELECT sum(v) AS s FROM t) a WHERE coalesce(s, 9) > 5",
        differs("HAVING compares `coalesce(s, 9)`"),
        sketches={"t#1": ("p", (2,), frozenset())},
        facts=(
            Fact("t", "v", FactKind.NONNEGATIVE, FactSource.CONSTRAINT),
            Fact("t", "v", FactKind.NOT_NULL, FactSource.CONSTRAINT),
        ),
    ),
    Example(
        "a sum of values that FILTER leaves out is NULL, which coalesce replaces",
        {"t": ("g p v", (("A", 1, 0), ("A", 2, 3), ("B", 1, 7)))},
        "SELECT g, s FROM (SELECT g, sum(v) FILTER (WHERE v > 0) AS s FROM t GROUP BY g) a"
        " WHERE coalesce(s, 9) > 5",
        differs("HAVING compares `coalesce(s, 9)`"),
        facts=(
            Fact("t", "v", FactKind.NONNEGATIVE, FactSource.CONSTRAINT),
            Fact("t", "v", FactKind.NOT_NULL, FactSource.CONSTRAINT),
        ),
    ),
    Example(
        "NULLs first where grouping sets leave a key out that is never NULL",
        {"t": ("h g p", (("A", 1, 1), ("A", 1, 2), ("A", 2, 1), ("B", 0, 1), ("B", 0, 1)))},
        "SELECT h, min(g) FROM (SELECT h, g, count(*) AS n FROM t GROUP BY GROUPING SETS ((h, g),"
        " (h))) a WHERE n >= 2 GROUP BY h ORDER BY min(g) ASC NULLS FIRST, h LIMIT 1",
        "ORDER BY puts NULLs first, and `min(g)` can be NULL over part of a group but not over "
        "all of it",
        facts=(Fact("t", "g", FactKind.NOT_NULL, FactSource.CONSTRAINT),),
    ),
    Example(
        "a sum of both infinities is NaN, though no value is",
        {"t": ("h g d", (("x", 1, 5.0), ("x", 2, math.inf), ("x", 2, -math.inf), ("y", 1, 5.0)))},
        "SELECT h, sum(0 - s) FROM (SELECT h, g, sum(d) AS s FROM t GROUP BY h, g) a WHERE s >= 0"
        " GROUP BY h HAVING sum(0 - s) < -3",
        differs(
            "HAVING compares `sum(0 - s)`", because="it is not known that `0 - s` is never negative"
        ),
        sketches={"t#1": ("g", (2,), frozenset({0}))},
        facts=(Fact("t", "d", FactKind.NAN_FREE, FactSource.STATISTICS),),
    ),
    Example(
        "the second rank alone",
        {"t": ("g p v", (("A", 1, 9), ("B", 2, 8), ("C", 2, 7)))},
        "SELECT g FROM (SELECT g, rank() OVER (ORDER BY v DESC) AS r FROM t) a WHERE r = 2",
        "the sketch would give window function `rank() OVER (ORDER BY v DESC)` incomplete "
        "partitions",
        sketches={"t#1": ("p", (2,), frozenset({1}))},
    ),
    Example(
        "a window over the key of one of two sketches",
        {"t": ("g p", (("A", 1), ("A", 2))), "u": ("h q", ((1, 1), (2, 2)))},
        "SELECT g FROM (SELECT t.g, count(*) OVER (PARTITION BY t.g) AS n FROM t JOIN u"
        " ON t.p = u.q) a WHERE n < 2",
        "the sketch would give window function `count(*) OVER (PARTITION BY t.g)` incomplete "
        "partitions",
        sketches={"t#1": ("g", ("B",), frozenset({0})), "u#1": ("h", (2,), frozenset({0}))},
    ),
    Example(
        "minus infinity times zero is NaN",
        {"t": ("g p d", (("A", 1, -math.inf), ("A", 2, 5.0), ("B", 1, math.inf)))},
        "SELECT g, max(d) FROM t GROUP BY g HAVING max(d) * 0.0D > 1",
        differs("HAVING compares `max(d) * 0.0D`"),
    ),
    Example(
        "coalesce puts a greater value in the place of NULL",
        {"t": ("g p v", (("A", 1, None), ("A", 2, 3), ("B", 1, 7)))},
        "SELECT g, max(v) FROM t GROUP BY g HAVING coalesce(max(v), 9) > 5",
        differs("HAVING compares `coalesce(max(v), 9)`"),
        facts=NONNEGATIVE_V,
    ),
    Example(
        "coalesce puts a lesser value in the place of NULL",
        {"t": ("g p v", (("A", 1, None), ("A", 2, -3), ("B", 1, -7)))},
        "SELECT g, min(v) FROM t GROUP BY g HAVING coalesce(min(v), -9) < -5",
        differs("HAVING compares `coalesce(min(v), -9)`"),
        facts=(Fact("t", "v", FactKind.NONPOSITIVE, FactSource.STATISTICS),),
    ),
    Example(
        "zero times minus infinity is NaN",
        {"t": ("g p d e", (("A", 1, 5.0, -1.0), ("A", 2, 0.0, -math.inf), ("B", 1, 5.0, -1.0)))},
        "SELECT g, sum(d * e) FROM t GROUP BY g HAVING sum(d * e) < -3",
        differs(
            "HAVING compares `sum(d * e)`", because="it is not known that `d * e` is never negative"
        ),
        facts=(
            Fact("t", "d", FactKind.NONNEGATIVE, FactSource.STATISTICS),
            Fact("t", "d", FactKind.NAN_FREE, FactSource.STATISTICS),
            Fact("t", "e", FactKind.NONPOSITIVE, FactSource.STATISTICS),
            Fact("t", "e", FactKind.NAN_FREE, FactSource.STATISTICS),
        ),
    ),
    Example(
        "the rest of minus infinity is NaN",
        {"t": ("g p d", (("A", 1, -5.0), ("A", 2, -math.inf), ("B", 1, -5.0)))},
        "SELECT g, sum(d % 3.0D) FROM t GROUP BY g HAVING sum(d % 3.0D) < -1",
        differs(
            "HAVING compares `sum(d % 3.0D)`",
            because="it is not known that `d % 3.0D` is never negative",
        ),
        facts=(
            Fact("t", "d", FactKind.NONPOSITIVE, FactSource.STATISTICS),
            Fact("t", "d", FactKind.NAN_FREE, FactSource.STATISTICS),
        ),
    ),
    Example(
        "NULL is the same as NULL",
        {"t": ("g p v w", (("A", 1, None, None), ("A", 2, 5, 5), ("B", 1, 1, 1)))},
        "SELECT g, min(v) FROM t WHERE v <=> w GROUP BY g ORDER BY min(v) ASC NULLS FIRST, g"
        " LIMIT 1",
        "ORDER BY puts NULLs first, and `min(v)` can be NULL over part of a group but not over "
        "all of it",
    ),
    Example(
        "either of two conditions teaches what both say, no more",
        {"t": SIGNED},
        "SELECT g, sum(v) FROM t WHERE v > 0 OR v < -5 GROUP BY g HAVING sum(v) > 4",
        differs("HAVING compares `sum(v)`", because="it is not known that `v` is never negative"),
    ),
    Example(
        "a fact about another table's column of the same name",
        {"t": SIGNED},
        "SELECT g, sum(v) FROM t GROUP BY g HAVING sum(v) > 4",
        differs("HAVING compares `sum(v)`", because="it is not known that `v` is never negative"),
        facts=(Fact("u", "v", FactKind.NONNEGATIVE, FactSource.CONSTRAINT),),
    ),
    Example(
        "a least value that equals a constant",
        {"t": ("g p v", (("A", 1, 5), ("A", 2, 1), ("B", 1, 5)))},
        "SELECT g, min(v) FROM t GROUP BY g HAVING min(v) = 5",
        differs("HAVING compares `min(v)`", "larger"),
    ),
    Example(
        "a least value that differs from a constant",
        {"t": ("g p v", (("A", 1, 6), ("A", 2, 5), ("B", 1, 6)))},
        "SELECT g, min(v) FROM t GROUP BY g HAVING min(v) <> 5",
        differs("HAVING compares `min(v)`", "larger"),
    ),
    Example(
        "NULLs first where both values of coalesce may be NULL",
        {"t": ("g p v w", (("A", 1, None, None), ("A", 2, None, 5), ("B", 1, 1, 1)))},
        "SELECT g, min(coalesce(v, w)) AS c FROM t GROUP BY g ORDER BY c ASC NULLS FIRST, g"
        " LIMIT 1",
        "ORDER BY puts NULLs first, and `min(coalesce(v, w))` can be NULL over part of a group "
        "but not over all of it",
    ),
    Example(
        "the greatest and the least together",
        {"t": ("g p v", (("A", 1, 8), ("A", 2, 1), ("B", 1, 8)))},
        "SELECT g, max(v) FROM t GROUP BY g HAVING max(v) + min(v) > 10",
        differs("HAVING compares `max(v) + min(v)`"),
    ),
)


def _results(example: Example, sql: str | None = None) -> tuple[object, object, bool]:
    """Answer over the tables, over the sketch, and whether the sketch covers the provenance."""
    query = parse_query(sql or example.sql, example.catalog())
    tables = example.rows()
    partitions = {access: (c, bounds) for access, (c, bounds, _) in example.sketches.items()}
    sketches = {access: ids for access, (_, _, ids) in example.sketches.items()}
    result = annotate(query.root, tables)
    needed = accurate_sketches(result, query.root, tables, partitions, barriers=False)
    covers = all(needed[access] <= set(sketches[access]) for access in partitions)
    instances = instances_of(query.root, tables, partitions, sketches)
    whole = bag(row for row, _ in result.rows)
    return whole, bag(evaluate(query.root, tables, instances)), covers


def _verdict(example: Example) -> Verdict:
    query = parse_query(example.sql, example.catalog())
    sketched = {access: column for access, (column, _, _) in example.sketches.items()}
    return check_safety(query, sketched, example.facts)


@pytest.mark.parametrize("example", [*UNSAFE, *CORNERS, *RARE_CORNERS], ids=str)
def test_unsafe_is_refused_with_its_reason(example: Example) -> None:
    verdict = _verdict(example)
    assert not verdict.safe
    assert verdict.reason == example.reason
    assert verdict.span is not None


@pytest.mark.slow
@pytest.mark.parametrize("example", [*UNSAFE, *CORNERS, *RARE_CORNERS], ids=str)
def test_accepting_the_unsafe_sketch_would_change_the_answer(example: Example) -> None:
    whole, sketched, covers = _results(example)
    assert covers, "the sketch must hold the whole provenance, else the case proves nothing"
    assert whole != sketched


TOP_UNDER_JOIN = Example(
    "CE-11 top-k under a join",
    {"k": ("id v", ((1, 100), (2, 90), (3, 80))), "m": ("id", ((2,), (3,)))},
    "SELECT a.id FROM (SELECT id, v FROM k ORDER BY v DESC, id LIMIT 2) a JOIN m ON a.id = m.id",
    sketches={"k#1": ("id", (2,), frozenset({1}))},
)
TOP_UNDER_HAVING = Example(
    "CE-12 top-k under HAVING",
    {"t": ("g p v", (("a", 1, 10), ("a", 1, 9), ("b", 2, 8), ("a", 1, 7)))},
    "SELECT g, count(*) FROM (SELECT g, v FROM t ORDER BY v DESC, g LIMIT 3) a GROUP BY g"
    " HAVING count(*) >= 2",
)
TOP_UNDER_HAVING_KEYED = Example(
    "CE-12 top-k under HAVING, grouping attribute",
    TOP_UNDER_HAVING.tables,
    TOP_UNDER_HAVING.sql,
    sketches={"t#1": ("g", ("b",), frozenset({0}))},
)


@pytest.mark.parametrize(
    "example", [TOP_UNDER_JOIN, TOP_UNDER_HAVING, TOP_UNDER_HAVING_KEYED], ids=str
)
def test_top_k_below_other_operators_needs_its_own_rows_in_the_sketch(example: Example) -> None:
    verdict = _verdict(example)
    assert verdict.safe
    assert verdict.barriers == 1
    whole, sketched, covers = _results(example)
    assert covers
    assert whole != sketched, "without the first rows' lineage the answer is wrong"

    query = parse_query(example.sql, example.catalog())
    tables = example.rows()
    partitions = {access: (c, bounds) for access, (c, bounds, _) in example.sketches.items()}
    result = annotate(query.root, tables)
    assert set(verdict.barrier_positions) == set(result.first_rows)
    sketches = accurate_sketches(result, query.root, tables, partitions)
    instances = instances_of(query.root, tables, partitions, sketches)
    assert bag(evaluate(query.root, tables, instances)) == whole


NULL_ATTRIBUTE = Example(
    "CE-17 rows with NULL in the attribute have a fragment of their own",
    {"t": ("g p v", (("A", None, 5), ("A", 1, 5), ("B", 1, 3)))},
    "SELECT g, sum(v) FROM t GROUP BY g HAVING sum(v) >= 10",
    sketches={"t#1": ("p", (1, 2), frozenset({1}))},
    facts=NONNEGATIVE_V,
)
TWO_ACCESSES = Example(
    "CE-28 the fragment of one access must not filter the other",
    {"t": ("id parent x", ((1, 2, 9), (2, None, 1)))},
    "SELECT a.id, b.id FROM t a JOIN t b ON a.parent = b.id WHERE a.x > 5",
    sketches={"t#1": ("id", (2,), frozenset({0})), "t#2": ("id", (2,), frozenset({0}))},
)
UNCOVERED = (
    NULL_ATTRIBUTE,
    Example(
        "CE-14 one witness of the maximum is not enough once aggregates nest",
        {"t": ("h v", ((1, -1), (1, -1), (2, -5), (2, Decimal("-0.5"))))},
        "SELECT max(s) FROM (SELECT h, sum(v) AS s FROM t GROUP BY h) a",
        sketches={"t#1": ("v", (Decimal("-2"),), frozenset({1}))},
    ),
    Example(
        "CE-15 captured with another constant",
        {"t": ("g x p a", ((1, 9, 1, 100), (1, 7, 2, 6)))},
        "SELECT g, max(a) FROM t WHERE x < 8 GROUP BY g HAVING max(a) > 5",
        sketches={"t#1": ("p", (2,), frozenset({0}))},
    ),
    Example(
        "CE-23 captured with another constant",
        {"t": ("id a v", ((1, 9, 100), (2, 9, 90), (3, 5, 80), (4, 5, 70)))},
        "SELECT id FROM t WHERE a < 8 ORDER BY v DESC LIMIT 2",
        sketches={"t#1": ("id", (3,), frozenset({0}))},
    ),
    Example(
        "CE-24 captured with another constant",
        {"t": ("g a v", (("A", 1, 10), ("A", 9, 2), ("B", 3, 3), ("B", 9, 20)))},
        "SELECT g, avg(v) FROM t WHERE a < 5 GROUP BY g HAVING avg(v) > 8",
        sketches={"t#1": ("g", ("B",), frozenset({1}))},
    ),
    Example(
        "CE-25 captured with another constant",
        {"t": ("g", (("A",), ("A",), ("B",)))},
        "SELECT g, count(*) FROM t GROUP BY g HAVING count(*) >= 1",
        sketches={"t#1": ("g", ("B",), frozenset({0}))},
    ),
    TWO_ACCESSES,
)


@pytest.mark.parametrize("example", UNCOVERED, ids=str)
def test_a_sketch_that_lacks_a_fragment_changes_the_answer(example: Example) -> None:
    assert _verdict(example).safe
    whole, sketched, covers = _results(example)
    assert not covers
    assert whole != sketched


def test_a_fact_from_statistics_is_named_because_later_rows_may_break_it() -> None:
    # v >= 0 held at capture; then (A, 1, 5) and (A, 2, -9) came.
    before = (("B", 1, 12), ("A", 1, 10), ("A", 2, 0))
    after = (*before, ("A", 1, 5), ("A", 2, -9))
    sql = "SELECT g, sum(v) FROM t GROUP BY g HAVING sum(v) > 11"
    first = Example("before", {"t": ("g p v", before)}, sql, facts=NONNEGATIVE_V)
    assert _verdict(first).assumptions == NONNEGATIVE_V
    assert _results(first)[0] == _results(first)[1]
    whole, sketched, covers = _results(Example("after", {"t": ("g p v", after)}, sql))
    assert covers
    assert whole != sketched


CONTROLS = (
    Example(
        "top-1 by sum of nonnegative values",
        {"cities": CITIES},
        "SELECT state, sum(popden) AS s FROM cities GROUP BY state ORDER BY s DESC LIMIT 1",
        sketches={"cities#1": ("popden", (4001,), frozenset({1}))},
        facts=(Fact("cities", "popden", FactKind.NONNEGATIVE, FactSource.CONSTRAINT),),
    ),
    Example(
        "CE-3 on the grouping attribute",
        {"t": COUNTED},
        "SELECT g, count(*) FROM t GROUP BY g HAVING count(*) <= 1",
        sketches={"t#1": ("g", ("B",), frozenset({1}))},
    ),
    Example(
        "max at least",
        {"t": ("g p v", (("A", 1, 1), ("A", 2, 9), ("B", 1, 2)))},
        "SELECT g, max(v) FROM t GROUP BY g HAVING max(v) >= 9",
        sketches={"t#1": ("p", (2,), frozenset({0, 1}))},
    ),
    Example(
        "avg only shown",
        {"t": ("g p v", (("A", 1, 1), ("A", 1, 9), ("B", 2, 2)))},
        "SELECT g, avg(v), count(*) FROM t GROUP BY g HAVING count(*) >= 2",
    ),
    Example(
        "row_number at the root",
        {"t": ("g p v", (("A", 1, 1), ("A", 2, 9), ("B", 2, 2)))},
        "SELECT * FROM (SELECT g, v, row_number() OVER (PARTITION BY g ORDER BY v DESC) AS n"
        " FROM t) a WHERE n <= 1",
        sketches={"t#1": ("p", (2,), frozenset({1}))},
    ),
    Example(
        "CE-26 a constant that keeps negatives out",
        {"t": SIGNED},
        "SELECT g, sum(v) FROM t WHERE v > 0 GROUP BY g HAVING sum(v) > 4",
    ),
    Example(
        "CE-19 with NULLS LAST",
        {"t": ("g p v", (("A", 2, 5), ("B", 1, 10), ("B", 2, None)))},
        "SELECT g, min(v) FROM t GROUP BY g ORDER BY min(v) ASC NULLS LAST, g LIMIT 1",
        sketches={"t#1": ("p", (2,), frozenset({1}))},
    ),
    Example(
        "CE-30 below the largest of a group",
        {
            "r": ("k x", ((1, 2), (2, 5))),
            "s": ("k p y", ((1, 1, 3), (2, 1, 4), (2, 2, 9))),
        },
        "SELECT r.k FROM r JOIN (SELECT k, max(y) AS m FROM s GROUP BY k) a ON r.k = a.k"
        " WHERE r.x < a.m",
        sketches={"s#1": ("p", (2,), frozenset({0, 1}))},
    ),
    Example(
        "CE-16 a capture that joins back would multiply rows on ties and miss k1",
        {"t": ("k g v", (("k1", "a", 5), ("k1", "a", 5), ("k2", "b", 1), ("k2", "c", 2)))},
        "SELECT k, count(*) FROM (SELECT k, g, max(v) AS m FROM t GROUP BY k, g) a GROUP BY k"
        " HAVING count(*) <= 1",
        sketches={"t#1": ("k", ("k2",), frozenset({0}))},
    ),
    replace(
        NULL_ATTRIBUTE,
        name="CE-17 with the fragment of NULL",
        sketches={"t#1": ("p", (1, 2), frozenset({1, 3}))},
    ),
    Example(
        "CE-18 ranges leave no gap between whole numbers",
        {
            "t": (
                "g p v",
                (("A", Decimal("600.5"), 7), ("A", Decimal("700"), 5), ("B", Decimal("1200"), 1)),
            )
        },
        "SELECT g, sum(v) FROM t GROUP BY g HAVING sum(v) >= 10",
        sketches={"t#1": ("p", (Decimal("601"), Decimal("1001")), frozenset({0, 1}))},
        facts=NONNEGATIVE_V,
    ),
    Example(
        "CE-21 a NULL group is a group",
        {"t": ("g x", ((None, 5), (None, 6), ("x", 1)))},
        "SELECT g, avg(x) FROM t GROUP BY g HAVING avg(x) > 2",
        sketches={"t#1": ("g", ("m",), frozenset({2}))},
    ),
    replace(
        TWO_ACCESSES,
        name="CE-28 each access of a table has its own sketch",
        sketches={"t#1": ("id", (2,), frozenset({0})), "t#2": ("id", (2,), frozenset({1}))},
    ),
)


@pytest.mark.parametrize("example", CONTROLS, ids=str)
def test_controls_are_accepted_and_right(example: Example) -> None:
    assert _verdict(example).safe
    whole, sketched, covers = _results(example)
    assert covers
    assert whole
    assert whole == sketched

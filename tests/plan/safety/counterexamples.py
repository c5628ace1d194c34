"""Queries and data on which an unsafe sketch gives a wrong answer, numbered CE-1 and up.

Law: the sketch of every example holds the whole provenance of the query's result, so it is the
accepting that would be wrong, not the sketch. Each names the reason for which it must be refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from impctl.data.schema import DOUBLE, INTEGER, LONG, STRING, Column, Schema, SqlType, decimal
from impctl.safety.facts import Fact, FactKind, FactSource
from tests.plan.trials import Boundaries
from tests.support.reference_expr import Value

Rows = Sequence[tuple[Value, ...]]


@dataclass(frozen=True)
class Example:
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

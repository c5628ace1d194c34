"""More unsafe sketches: NaN, infinity, casts, keys of one access only, grouping sets, coalesce.

Law: as in `counterexamples`; here each case guards one clause of a rule that random trials on tiny
tables hardly ever reach.
"""

from __future__ import annotations

import math

from impctl.plan.facts import Fact, FactKind, FactSource
from tests.plan.counterexamples import P1, Example

WIDE = 2**53

CORNERS = (
    Example(
        "minus NaN is NaN",
        {"t": ("g p d", (("A", 1, 3.0), ("A", 2, math.nan), ("B", 1, 5.0)))},
        "SELECT g, max(d) FROM t GROUP BY g HAVING -max(d) < 0",
        P1,
        "HAVING compares `max(d)`, which can be larger or smaller over part of a group than over"
        " all of it",
    ),
    Example(
        "infinity minus infinity",
        {
            "t": (
                "g p d e",
                (
                    ("A", 1, math.inf, -math.inf),
                    ("A", 2, 0.0, 5.0),
                    ("B", 1, math.nan, 1.0),
                ),
            )
        },
        "SELECT g, max(d), max(e) FROM t GROUP BY g ORDER BY max(d) + max(e) DESC, g LIMIT 1",
        P1,
        "ORDER BY ranks by `max(d) + max(e)`, which can be larger or smaller over part of a group"
        " than over all of it",
    ),
    Example(
        "NaN in a sum that is never positive otherwise",
        {"t": ("g p d", (("A", 1, -3.0), ("A", 2, math.nan), ("B", 1, -5.0)))},
        "SELECT g, sum(d) FROM t GROUP BY g HAVING sum(d) < 0",
        P1,
        "HAVING compares `sum(d)`, which can be larger or smaller over part of a group than over"
        " all of it, because nothing says that `d` is never negative",
        (Fact("t", "d", FactKind.NONPOSITIVE, FactSource.STATISTICS),),
    ),
    Example(
        "equality after a cast that rounds",
        {
            "t": ("p", ((WIDE,), (WIDE + 1,))),
            "u": ("q", ((float(WIDE),),)),
        },
        "SELECT q, max(p) FROM t JOIN u ON p = q GROUP BY q HAVING max(p) <= 9007199254740992",
        {"t#1": ("p", (WIDE + 1,), frozenset({0}))},
        "HAVING compares `max(p)`, which can be smaller over part of a group than over all of it",
    ),
    Example(
        "grouped on the key of one access only",
        {
            "t": ("g", (("A",), ("B",))),
            "u": ("h p v", (("A", 1, 9), ("A", 2, 1), ("B", 1, 8))),
        },
        "SELECT g, avg(v) FROM t JOIN u ON g = h GROUP BY g HAVING avg(v) > 7",
        {"t#1": ("g", ("B",), frozenset({0, 1})), "u#1": ("p", (2,), frozenset({0}))},
        "HAVING compares `avg(v)`, which can be larger or smaller over part of a group than over"
        " all of it",
    ),
    Example(
        "grouping sets that leave the key out",
        {"t": ("g h", (("B", "x"), ("A", "x"), ("A", "w"), ("A", "w")))},
        "SELECT g, h, count(*) FROM t GROUP BY GROUPING SETS ((g), (h)) HAVING count(*) = 1",
        {"t#1": ("g", ("B",), frozenset({1}))},
        "HAVING compares `count(*)`, which can be smaller over part of a group than over all of it",
    ),
    Example(
        "coalesce fills in for what is missing",
        {"t": ("g p v", (("A", 1, None), ("A", 2, 1), ("B", 1, 9)))},
        "SELECT g, max(v) FROM t GROUP BY g HAVING coalesce(max(v), 5) > 3",
        P1,
        "HAVING compares `coalesce(max(v), 5)`, which can be larger or smaller over part of a"
        " group than over all of it",
    ),
    Example(
        "IS NULL becomes true over part of a group",
        {"t": ("g p v", (("A", 1, None), ("A", 2, 1), ("B", 1, None)))},
        "SELECT g, max(v) FROM t GROUP BY g HAVING max(v) IS NULL",
        P1,
        "HAVING tests `max(v)` for NULL, which it can be over part of a group only",
    ),
    Example(
        "a sum of absolute values of sums",
        {
            "t": (
                "h g p v",
                (("x", "A", 1, 9), ("x", "A", 2, -9), ("y", "B", 1, 7)),
            )
        },
        "SELECT h, sum(abs(s)) FROM (SELECT h, g, sum(v) AS s FROM t GROUP BY h, g) a GROUP BY h"
        " HAVING sum(abs(s)) > 5",
        P1,
        "HAVING compares `sum(abs(s))`, which can be larger or smaller over part of a group than"
        " over all of it",
    ),
    Example(
        "NOT turns the comparison round",
        {"t": ("g p", (("A", 1), ("A", 2), ("B", 1)))},
        "SELECT g, count(*) FROM t GROUP BY g HAVING NOT (count(*) >= 2 OR g = 'Z')",
        P1,
        "HAVING compares `count(*)`, which can be smaller over part of a group than over all of it",
    ),
    Example(
        "BETWEEN has an upper end",
        {"t": ("g p", (("A", 1), ("A", 2), ("B", 1)))},
        "SELECT g, count(*) FROM t GROUP BY g HAVING count(*) BETWEEN 1 AND 1",
        P1,
        "HAVING compares `count(*)`, which can be smaller over part of a group than over all of it",
    ),
    Example(
        "FILTER on an aggregate of a subquery",
        {
            "t": (
                "h g p",
                (("x", "A", 1), ("x", "A", 2), ("y", "B", 1)),
            )
        },
        "SELECT h, count(*) FILTER (WHERE n < 2) AS few FROM (SELECT h, g, count(*) AS n FROM t"
        " GROUP BY h, g) a GROUP BY h HAVING count(*) FILTER (WHERE n < 2) >= 1",
        P1,
        "HAVING compares `count(*) FILTER (WHERE n < 2)`, which can be larger or smaller over part"
        " of a group than over all of it, because its FILTER reads `n < 2`",
    ),
    Example(
        "intersect on values of a group",
        {
            "t": ("g p", (("A", 1), ("A", 2), ("B", 1))),
            "u": ("h n", (("A", 1), ("B", 1))),
        },
        "SELECT g, count(*) FROM t GROUP BY g INTERSECT SELECT h, n FROM u",
        P1,
        "INTERSECT compares values that can differ over part of the rows",
    ),
    Example(
        "IN a subquery of values of groups",
        {
            "l": ("a", ((1,), (2,))),
            "t": ("g p v", (("A", 1, 1), ("A", 2, 5), ("B", 1, 2))),
        },
        "SELECT a FROM l WHERE a IN (SELECT max(v) FROM t GROUP BY g)",
        P1,
        "The join compares `max(v)`, which can be smaller over part of a group than over all of it",
    ),
    Example(
        "rank by what can grow",
        {"t": ("g p v", (("A", 1, 9), ("A", 2, 1), ("B", 1, 8)))},
        "SELECT * FROM (SELECT g, m, rank() OVER (ORDER BY m DESC) AS r FROM (SELECT g, min(v) AS m"
        " FROM t GROUP BY g) a) b WHERE r <= 1",
        P1,
        "ORDER BY ranks by `min(v)`, which can be larger over part of a group than over all of it",
    ),
    Example(
        "a sum of opposite infinities is NaN, also where it is taken from 0",
        {
            "t": (
                "g p d e",
                (
                    ("A", 1, 5.0, 1.0),
                    ("A", 2, math.inf, -math.inf),
                    ("B", 1, 5.0, 2.0),
                ),
            )
        },
        "SELECT g, sum(0 - (d + e)) FROM t WHERE d + e >= 0 GROUP BY g"
        " HAVING sum(0 - (d + e)) < -3",
        P1,
        "HAVING compares `sum(0 - (d + e))`, which can be larger or smaller over part of a group"
        " than over all of it, because nothing says that `0 - (d + e)` is never negative",
        (
            Fact("t", "d", FactKind.NAN_FREE, FactSource.STATISTICS),
            Fact("t", "e", FactKind.NAN_FREE, FactSource.STATISTICS),
        ),
    ),
    Example(
        "NaN is at most NaN",
        {
            "t": (
                "g p d e",
                (
                    ("A", 1, 5.0, 9.0),
                    ("A", 2, math.nan, math.nan),
                    ("B", 1, 5.0, 9.0),
                ),
            )
        },
        "SELECT g, sum(0 - d) FROM t WHERE d >= 0 AND d <= e GROUP BY g HAVING sum(0 - d) < -3",
        P1,
        "HAVING compares `sum(0 - d)`, which can be larger or smaller over part of a group than"
        " over all of it, because nothing says that `0 - d` is never negative",
    ),
)

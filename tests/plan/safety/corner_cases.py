"""More unsafe sketches: NaN, infinity, casts, keys of one access only, grouping sets, coalesce.

Law: as in `counterexamples`; here each case guards one clause of a rule that random trials on tiny
tables hardly ever reach.
"""

from __future__ import annotations

import math

from impctl.safety.facts import Fact, FactKind, FactSource
from tests.plan.safety.counterexamples import Example, differs

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

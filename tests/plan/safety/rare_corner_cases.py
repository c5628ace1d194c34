"""More corner cases: sums over nothing, products with infinities, NULL beside NULL, window keys.

Law: as in `counterexamples`; each case is one that a change of one line in a rule let through.
"""

from __future__ import annotations

import math

from impctl.safety.facts import Fact, FactKind, FactSource
from tests.plan.safety.counterexamples import NONNEGATIVE_V, SIGNED, Example, differs

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

"""Queries that may not use the sketch of another one, though their templates are the same.

Law: each case is harmed if it is allowed, which its test shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from impctl.plan.nodes import Query
from impctl.reuse.verdict import ReuseVerdict, check_reuse
from impctl.rules.optimize import apply_rules
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.sql.statement import parse_query
from tests.plan.safety.counterexamples import Example, Rows, differs
from tests.plan.trials import Boundaries, accurate_sketches, instances_of
from tests.support.reference_plan import annotate, bag, evaluate

POSITIVE = Fact("t", "v", FactKind.NONNEGATIVE, FactSource.STATISTICS)
TABLE = {"t": ("g p v x", (("A", 1, 10, 5), ("B", 2, 3, 7)))}


@dataclass(frozen=True)
class Case:
    """A text with the values that were captured and that are asked for, sketched on `t#1`."""

    name: str
    tables: Mapping[str, tuple[str, Rows]]
    sql: str
    values: tuple[object, object]
    reason: str = ""
    sketch: tuple[str, Boundaries] = ("g", ("B",))
    facts: Sequence[Fact] = ()

    @property
    def queries(self) -> tuple[Query, Query]:
        captured, asked = (self._query(self.sql.format(value)) for value in self.values)
        return captured, asked

    def _query(self, sql: str) -> Query:
        query = parse_query(sql, Example(self.name, self.tables, sql).catalog())
        return Query(sql, apply_rules(query.root), query.nondeterministic)

    def verdict(self) -> ReuseVerdict:
        captured, asked = self.queries
        return check_reuse(asked, captured, {"t#1": self.sketch[0]}, self.facts)

    def is_harmed(self) -> bool:
        """Whether the captured sketch changes the asked answer."""
        captured, asked = self.queries
        tables = Example(self.name, self.tables, self.sql).rows()
        partitions = {"t#1": self.sketch}
        result = annotate(captured.root, tables)
        sketches = accurate_sketches(result, captured.root, tables, partitions)
        instances = instances_of(asked.root, tables, partitions, sketches)
        return bag(evaluate(asked.root, tables, instances)) != bag(evaluate(asked.root, tables))

    def __str__(self) -> str:
        return self.name


REFUSED = (
    Case(
        "CE-23 top-k over fewer rows",
        {"t": ("id a v", ((1, 9, 100), (2, 9, 90), (3, 5, 80), (4, 5, 70)))},
        "SELECT id FROM t WHERE a < {} ORDER BY v DESC, id LIMIT 2",
        (10, 8),
        "the constants below LIMIT differ, so other rows may be among the first",
        sketch=("id", (3,)),
    ),
    Case(
        "CE-24 average over fewer rows",
        {"t": ("g x v", (("A", 1, 10), ("A", 9, 2), ("B", 1, 3), ("B", 9, 20)))},
        "SELECT g, avg(v) AS a FROM t WHERE x < {} GROUP BY g HAVING avg(v) > 8",
        (10, 5),
        "the constants below HAVING differ, which changes the values that it compares in `avg(v) "
        "> 8`",
    ),
    Case(
        "CE-25 lower threshold",
        {"t": ("g", (("A",), ("A",), ("B",)))},
        "SELECT g, count(*) AS n FROM t GROUP BY g HAVING count(*) >= {}",
        (2, 1),
        "HAVING does not imply the condition the sketch was captured for: `count(*) >= 2`, but "
        "the query says `count(*) >= 1`",
    ),
    Case(
        "CE-26 the constant made the sum monotone",
        {"t": ("g p v", (("A", 1, 10), ("A", 2, -8), ("B", 1, 5)))},
        "SELECT g, sum(v) AS s FROM t WHERE v > {} GROUP BY g HAVING sum(v) > 4",
        (0, -100),
        "with these constants the sketch is not safe: "
        + differs("HAVING compares `sum(v)`", because="it is not known that `v` is never negative"),
        sketch=("p", (2,)),
    ),
    Case(
        "count at most, fewer rows",
        {"t": ("g x", (("A", 1), ("A", 2), ("A", 9), ("B", 1)))},
        "SELECT g FROM t WHERE x < {} GROUP BY g HAVING count(*) <= 2",
        (10, 5),
        "the constants below HAVING differ, which changes the values that it compares in "
        "`count(*) <= 2`",
    ),
    Case(
        "more rows than the LIMIT captured",
        {"t": ("id v", ((1, 10), (2, 20), (3, 30)))},
        "SELECT id FROM t ORDER BY v DESC LIMIT {}",
        (1, 2),
        "LIMIT asks for 2 rows, but the sketch covers only 1",
        sketch=("id", (2, 3)),
    ),
    Case(
        "sum of what the captured rows may make negative",
        {"t": ("g p v", (("A", 1, 10), ("A", 2, -8), ("B", 1, 5)))},
        "SELECT g, sum(v) AS s FROM t WHERE v > {} GROUP BY g HAVING sum(v) > 4",
        (-100, 0),
        "the constants below HAVING differ, which changes the values that it compares in `sum(v) "
        "> 4`",
    ),
    Case(
        "an arithmetic constant outside of conditions",
        {"t": ("g v", (("A", 10), ("B", 3)))},
        "SELECT g FROM t GROUP BY g HAVING sum(v * {}) > 10",
        (2, 5),
        "outside of conditions, nothing may differ: `v * 2`, but the query says `v * 5`",
    ),
    Case(
        "a constant that Spark rounds to single precision",
        {"t": ("g x", (("A", 0.1), ("A", 0.5), ("B", 0.5), ("B", 0.5)))},
        "SELECT g, count(*) AS n FROM t WHERE x >= {} GROUP BY g HAVING count(*) >= 2",
        ("0.1F", "0.1"),
        "WHERE does not imply the condition the sketch was captured for: `x >= 0.1F`, but the "
        "query says `x >= 0.1`",
    ),
    Case(
        "a right side that grows",
        {"t": ("k", ((1,), (2,))), "u": ("k y", ((1, 1), (2, 5)))},
        "SELECT k FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.y < {})",
        (10, 3),
        "the constants differ on the side of the ANTI join that must be the same",
        sketch=("k", (2,)),
    ),
    Case(
        "a guard that reads no column, beside NOT IN",
        {"t": ("k", ((1,), (2,))), "u": ("k y", ((1, 1),))},
        "SELECT k FROM t WHERE k NOT IN (SELECT k FROM u WHERE {} > 0)",
        (1, 0),
        "the constants differ on the side of the ANTI join that must be the same",
        sketch=("k", (2,)),
    ),
    Case(
        "a guard that reads no column, below a count",
        {"t": ("k", ((1,), (2,))), "u": ("k y", ((1, 1),))},
        "SELECT t.k FROM t JOIN (SELECT count(*) AS c FROM u WHERE DATE {} > DATE '2024-01-01') q"
        " ON q.c < 1",
        ("'2024-06-01'", "'2023-06-01'"),
        "the constants below HAVING differ, which changes the values that it compares in `q.c < 1`",
        sketch=("k", (2,)),
    ),
    Case(
        "an OFFSET that begins later",
        {"t": ("id v", ((1, 10), (2, 20), (3, 30)))},
        "SELECT id FROM t ORDER BY v DESC LIMIT 1{}",
        ("", " OFFSET 1"),
        "OFFSET must be the same",
        sketch=("id", (2, 3)),
    ),
    Case(
        "a join condition over both sides that lets fewer pairs through",
        {"t": ("g k v", (("A", 1, 1), ("A", 1, 9), ("B", 2, 9))), "u": ("k x", ((1, 1), (2, 1)))},
        "SELECT t.g FROM t JOIN u ON t.k = u.k AND t.v + u.x > {} GROUP BY t.g HAVING count(*) < 2",
        (1, 5),
        "the constants below HAVING differ, which changes the values that it compares in "
        "`count(*) < 2`",
    ),
    Case(
        "no LIMIT where the sketch was captured with one, on a table without sketch",
        {"t": ("id", ((1,), (2,), (3,))), "u": ("k", ((1,), (2,), (3,)))},
        "SELECT t.id FROM t JOIN (SELECT k FROM u ORDER BY k {}OFFSET 1) q ON t.id = q.k",
        ("LIMIT 1 ", ""),
        "LIMIT asks for all rows, but the sketch covers only 1",
        sketch=("id", (2, 3)),
    ),
    Case(
        "fewer first rows below a count",
        {"t": ("g", (("A",), ("B",))), "u": ("h v", (("A", 9), ("A", 8), ("B", 1)))},
        "SELECT t.g FROM t JOIN (SELECT h FROM (SELECT h, v FROM u ORDER BY v DESC, h LIMIT {}) a"
        " GROUP BY h HAVING count(*) < 2) q ON t.g = q.h",
        (2, 1),
        "the constants below HAVING differ, which changes the values that it compares in "
        "`count(*) < 2`",
    ),
    Case(
        "an anti join on a count over fewer rows",
        {"t": ("g x", (("A", 1), ("A", 9), ("B", 1), ("B", 9))), "u": ("k", ((2,),))},
        "SELECT g FROM (SELECT g, count(*) AS n FROM t WHERE x < {} GROUP BY g) q WHERE NOT EXISTS"
        " (SELECT 1 FROM u WHERE u.k = q.n)",
        (10, 5),
        "the constants differ, which changes what the ANTI join matches on",
    ),
    Case(
        "an anti join whose condition lets fewer pairs through",
        {"t": ("k x", ((1, 1), (2, 1))), "u": ("k y", ((1, 5), (2, 5)))},
        "SELECT k FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.y + t.x < {})",
        (10, 3),
        "the constants differ, which changes what the ANTI join matches on",
        sketch=("k", (2,)),
    ),
    Case(
        "a subquery that holds less, below a count",
        {"t": ("g v", (("A", 1), ("A", 2), ("B", 9))), "u": ("k y", ((1, 1), (2, 8)))},
        "SELECT g FROM t WHERE v IN (SELECT k FROM u WHERE y < {}) GROUP BY g HAVING count(*) < 2",
        (10, 3),
        "the constants below HAVING differ, which changes the values that it compares in "
        "`count(*) < 2`",
    ),
    Case(
        "a subquery that matches less, below a count",
        {"t": ("g v x", (("A", 1, 1), ("A", 2, 5), ("B", 9, 1))), "u": ("k y", ((1, 1), (2, 4)))},
        "SELECT g FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.v AND u.y + t.x < {}) GROUP"
        " BY g HAVING count(*) < 2",
        (10, 3),
        "the constants below HAVING differ, which changes the values that it compares in "
        "`count(*) < 2`",
    ),
    Case(
        "grouped on a count over fewer rows",
        {"t": ("g x", (("A", 1), ("A", 9), ("B", 1)))},
        "SELECT n, count(*) AS c FROM (SELECT g, count(*) AS n FROM t WHERE x < {} GROUP BY g) a"
        " GROUP BY n HAVING count(*) >= 2",
        (10, 5),
        "the constants differ, which changes values used for grouping",
    ),
    Case(
        "totals over fewer rows, beside groups by what differs",
        {"t": ("g x", (("A", 1), ("A", 2), ("A", 9), ("B", 1)))},
        "SELECT g, x FROM t WHERE x < {} GROUP BY GROUPING SETS ((g, x), (g)) HAVING count(*) = 2",
        (10, 5),
        "the constants below HAVING differ, which changes the values that it compares in "
        "`count(*) = 2`",
    ),
    Case(
        "EXCEPT takes fewer rows away",
        {"t": ("g", ((1,), (2,))), "u": ("h y", ((1, 5),))},
        "SELECT g FROM t EXCEPT SELECT h FROM u WHERE y < {}",
        (10, 3),
        "the constants differ, which changes the rows that EXCEPT removes",
        sketch=("g", (2,)),
    ),
    Case(
        "INTERSECT with counts over fewer rows",
        {"t": ("g v", ((1, 1), (2, 3))), "u": ("h y", ((1, 1), (1, 9)))},
        "SELECT g, v FROM t INTERSECT SELECT h, count(*) FROM u WHERE y < {} GROUP BY h",
        (10, 5),
        "the constants differ, which changes the values that INTERSECT compares",
        sketch=("g", (2,)),
    ),
    Case(
        "a union whose right side holds less, below a count",
        {"t": ("g", ((1,), (2,))), "u": ("h", ((1,),)), "s": ("h y", ((1, 9),))},
        "SELECT t.g FROM t JOIN (SELECT h FROM (SELECT h FROM u UNION ALL SELECT h FROM s WHERE y"
        " < {}) a GROUP BY h HAVING count(*) < 2) q ON t.g = q.h",
        (10, 5),
        "the constants below HAVING differ, which changes the values that it compares in "
        "`count(*) < 2`",
        sketch=("g", (2,)),
    ),
    Case(
        "a window over fewer rows",
        {"t": ("g x", (("A", 1), ("A", 9), ("B", 1), ("B", 2)))},
        "SELECT g, x FROM (SELECT g, x, count(*) OVER (PARTITION BY g) AS n FROM t WHERE x < {}) a"
        " WHERE n < 2",
        (10, 5),
        "the constants below WHERE differ, which changes the values that it compares in `n < 2`",
    ),
    Case(
        "distinct counts over fewer rows",
        {"t": ("g x", (("A", 1), ("A", 9), ("B", 1)))},
        "SELECT n, count(*) AS c FROM (SELECT DISTINCT g, n FROM (SELECT g, count(*) AS n FROM t"
        " WHERE x < {} GROUP BY g) a) b GROUP BY n HAVING count(*) >= 2",
        (10, 5),
        "the constants differ, which changes the values that DISTINCT compares",
    ),
    Case(
        "the first rows of the other end",
        {"t": ("id v", ((1, 10), (2, 20), (3, 30)))},
        "SELECT id FROM t ORDER BY v {}LIMIT 1",
        ("DESC ", ""),
        "the queries differ in more than the constants in their conditions",
        sketch=("id", (2, 3)),
    ),
    Case(
        "another constant in ORDER BY",
        {"t": ("id v", ((1, 10), (2, 20), (3, 30)))},
        "SELECT id FROM t ORDER BY abs(v - {}) LIMIT 1",
        (10, 30),
        "outside of conditions, nothing may differ: `abs(v - 10)`, but the query says `abs(v - "
        "30)`",
        sketch=("id", (2, 3)),
    ),
)

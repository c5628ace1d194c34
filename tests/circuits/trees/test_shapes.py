"""Shapes of queries over six tables of letters, against a table of what is expected."""

from __future__ import annotations

import pytest

from tests.circuits.trees.drawn import drawn, pairs

CASES = """\
SELECT r.a FROM s JOIN r ON s.a = r.a GROUP BY r.a HAVING SUM(s.b) > 100
    ring [a](s{a} on a; r{a} on a)
SELECT r.a FROM s JOIN r ON s.a = r.a
    bits s{a}(r{a} on a)
SELECT r.a, SUM(s.b) FROM s JOIN r ON s.a = r.a GROUP BY r.a
    bits s{a}(r{a} on a)
SELECT DISTINCT r.a FROM s JOIN r ON s.a = r.a
    bits s{a}(r{a} on a)
SELECT r.a, SUM(s.b) AS v FROM s JOIN r ON s.a = r.a GROUP BY r.a ORDER BY v LIMIT 3
    ring [a](s{a} on a; r{a} on a)
SELECT r.a FROM s JOIN r ON s.a = r.a ORDER BY r.b LIMIT 3
    not_at_the_top: r.b
SELECT r.b FROM s JOIN r ON s.a = r.a GROUP BY r.b HAVING SUM(s.b) > 100
    ring r{a,b}(s{a} on a)
SELECT r.b, s.b FROM s JOIN r ON s.a = r.a GROUP BY r.b, s.b HAVING COUNT(*) > 100
    one_bag: r.b
SELECT s.c FROM r JOIN s ON r.b = s.b JOIN t ON s.c = t.c GROUP BY s.c HAVING SUM(t.d) > 20
    ring [c](s{b,c}(r{b} on b) on c; t{c} on c)
SELECT s.d FROM r JOIN s ON r.b = s.b JOIN t ON s.c = t.c GROUP BY s.d HAVING SUM(t.d) > 20
    ring s{b,c,d}(r{b} on b; t{c} on c)
SELECT r.d FROM r JOIN s ON r.b = s.b JOIN t ON s.c = t.c GROUP BY r.d HAVING SUM(t.d) > 20
    ring r{b,d}(s{b,c}(t{c} on c) on b)
SELECT r.d, t.e FROM r JOIN s ON r.b = s.b JOIN t ON s.c = t.c GROUP BY r.d, t.e HAVING COUNT(*) >
20
    one_bag: r.d
SELECT r.d, s.e FROM r JOIN s ON r.b = s.b JOIN t ON s.c = t.c GROUP BY r.d, s.e HAVING COUNT(*) >
20
    ring r+s{c,d,e}(t{c} on c)
SELECT r.a FROM r, s, t WHERE r.a = s.a AND s.b = t.b AND t.c = r.c GROUP BY r.a HAVING COUNT(*) > 3
    ring r+s+t{a}
SELECT r.a FROM r, s, t, u WHERE r.a = s.a AND s.b = t.b AND t.c = r.c AND u.d = r.d GROUP BY u.e,
r.a HAVING COUNT(*) > 3
    ring r+s+t+u{e,a}
SELECT 1 FROM r, s HAVING COUNT(*) > 3
    ring r{}(s{} on -)
SELECT r.b FROM r JOIN s ON r.a = s.a JOIN t ON t.b < s.b GROUP BY r.b HAVING COUNT(*) > 3
    ring r{a,b}(s+t{a} on a)
SELECT r.b FROM r JOIN s ON r.a = s.a WHERE EXISTS (SELECT 1 FROM t WHERE t.a = r.c AND t.b > 3)
GROUP BY r.b HAVING COUNT(*) > 3
    ring r{a,c,b}(s{a} on a; semi t{a} on a)
SELECT r.b FROM r JOIN s ON r.a = s.a WHERE NOT EXISTS (SELECT 1 FROM t JOIN u ON t.c = u.c WHERE
t.a = r.c AND u.b > 3) GROUP BY r.b HAVING COUNT(*) > 3
    ring r{a,c,b}(s{a} on a; anti t{c,a}(u{c} on c) on a)
SELECT r.b FROM r LEFT JOIN s ON r.a = s.a JOIN t ON t.c = r.c GROUP BY r.b HAVING COUNT(s.b) > 3
    ring r{c,a,b}(t{c} on c; left s{a} on a)
SELECT r.b FROM r LEFT JOIN s ON r.a = s.a AND s.b > 3 GROUP BY r.b HAVING SUM(COALESCE(s.b, 1)) > 3
    one_bag: s ON r.a = s.a AND s.b > 3
SELECT r.b FROM r LEFT JOIN s ON r.a = s.a WHERE s.b IS NULL GROUP BY r.b HAVING COUNT(*) > 3
    one_bag: s ON r.a = s.a
SELECT r.b FROM r LEFT JOIN s ON r.a = s.a AND r.c > 2 JOIN t ON t.c = r.c GROUP BY r.b HAVING
COUNT(*) > 3
    ring r+s{c,b}(t{c} on c)
SELECT r.b FROM s RIGHT JOIN r ON r.a = s.a GROUP BY r.b HAVING COUNT(s.b) > 3
    ring r{a,b}(left s{a} on a)
SELECT s.c FROM r LEFT JOIN s ON r.a = s.a GROUP BY s.c HAVING COUNT(*) > 3
    one_bag: s ON r.a = s.a
SELECT r.b FROM r WHERE r.a IN (SELECT a FROM s) GROUP BY r.b HAVING COUNT(*) > 3
    ring r{a,b}(semi s{a} on a)
SELECT r.b FROM r WHERE r.a IN (SELECT a FROM s GROUP BY a HAVING COUNT(*) > 2) GROUP BY r.b HAVING
COUNT(*) > 3
    ring r{a,b}(semi s{a} on a)
SELECT r.b FROM r WHERE r.a NOT IN (SELECT a FROM s) GROUP BY r.b HAVING COUNT(*) > 3
    one_bag: r.a NOT IN (SELECT a FROM s)
SELECT r.b FROM r JOIN t ON r.a = t.a WHERE r.a NOT IN (SELECT a FROM s) GROUP BY r.b HAVING
COUNT(*) > 3
    ring r+s{a,b}(t{a} on a)
SELECT r.b FROM r FULL JOIN s ON r.a = s.a GROUP BY r.b HAVING COUNT(*) > 3
    one_bag: s ON r.a = s.a
SELECT r.a FROM r JOIN s ON r.a = s.a UNION SELECT t.a FROM t JOIN u ON t.a = u.a
    bits r{a}(s{a} on a) | bits t{a}(u{a} on a)
SELECT x.a FROM (SELECT a, b + 1 AS k FROM r) x JOIN s ON x.k = s.a GROUP BY x.a HAVING SUM(s.b) > 1
    ring r{k,a}(s{a} on a)
SELECT r.a FROM r JOIN s ON r.b + 1 = s.a GROUP BY r.a HAVING SUM(s.b) > 1
    ring r{b + 1,a}(s{a} on a)
SELECT r.i FROM r JOIN s ON r.i = s.a GROUP BY r.i HAVING SUM(s.b) > 1
    ring [i](r{i} on i; s{a} on a)
SELECT r.a FROM r JOIN s ON r.name = s.a JOIN t ON t.b = s.b GROUP BY r.a HAVING SUM(s.b) > 1
    ring r+s{b,a}(t{b} on b)
SELECT r.a FROM r JOIN s ON r.b <=> s.b GROUP BY r.a HAVING SUM(s.c) > 1
    ring r{b,a}(s{b} on b?)
SELECT r.a FROM r JOIN s ON r.b <=> s.b JOIN t ON t.b = s.b GROUP BY r.a HAVING SUM(s.c) > 1
    ring r{b,a}(s{b} on b; t{b} on b)
SELECT r.d FROM r JOIN s ON r.a = s.a AND r.b = s.a GROUP BY r.d HAVING SUM(s.c) > 1
    ring r{a,d}(s{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a JOIN t ON r.b = t.a AND t.a = s.a GROUP BY r.d HAVING SUM(s.c)
> 1
    ring r{b,d}(s{a} on a; t{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING SUM(s.c * r.b) > 1
    one_bag: s.c * r.b
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING SUM(s.c / s.d) > 1
    may_fail: s.c / s.d
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING COUNT(DISTINCT s.c) > 1
    call: COUNT(DISTINCT s.c)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING COUNT(DISTINCT r.c) > 1
    ring r{a,d,c}(s{a} on a)
SELECT r.a FROM r JOIN s ON r.a = s.a GROUP BY r.a HAVING SUM(DISTINCT s.c) > 1
    ring s{a,c}(r{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING COUNT(DISTINCT s.a) > 1
    ring r{a,d}(s{a} on a)
SELECT r.d FROM r LEFT JOIN s ON r.a = s.a GROUP BY r.d HAVING COUNT(DISTINCT s.c) > 1
    call: COUNT(DISTINCT s.c)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MAX(r.name) > 'a'
    ring r{a,d,name}(s{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MAX(s.name) > 'a'
    call: MAX(s.name)
SELECT r.a FROM r JOIN s ON r.a = s.a GROUP BY r.a HAVING MIN(s.name) = ''
    ring s{a,name}(r{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MIN_BY(r.b, r.c) > 1
    ring r{a,d,b,c}(s{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MIN_BY(r.b, s.a) > 1
    ring r{a,d,b}(s{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MIN_BY(r.b, s.c) > 1
    call: MIN_BY(r.b, s.c)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MAX_BY(s.b, s.c) > 1
    call: MAX_BY(s.b, s.c)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MAX_BY(r.rate, r.c) > 1
    call: MAX_BY(r.rate, r.c)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MAX_BY(r.c, r.rate) > 1
    ring r{a,d,c,rate}(s{a} on a)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING MEDIAN(s.c) > 1
    call: MEDIAN(s.c)
SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY ROLLUP(r.d) HAVING COUNT(*) > 1
    not_at_the_top: r.d
SELECT r.d FROM r JOIN (SELECT a, SUM(rate) AS x FROM s GROUP BY a) q ON r.rate = q.x GROUP BY r.d
HAVING COUNT(*) > 1
    one_bag: r.rate = q.x
SELECT r.d FROM r JOIN (SELECT a, SUM(rate) AS x FROM s GROUP BY a) q ON r.a = q.a GROUP BY r.d
HAVING SUM(q.x) > 1
    unsure: q.x
SELECT r.d, COUNT(*) FROM r JOIN s ON r.a = s.a WHERE (r.b = 1 AND s.b = 2) OR (r.b = 2 AND s.b = 1)
GROUP BY r.d HAVING COUNT(*) > 1
    one_bag: (r.b = 1 AND s.b = 2) OR (r.b = 2 AND s.b = 1)
SELECT a FROM r WHERE b > 1 GROUP BY a HAVING COUNT(*) > 2
    one_table: b > 1
SELECT n, COUNT(*) FROM (SELECT r.a, COUNT(s.b) AS n FROM r LEFT JOIN s ON r.a = s.a GROUP BY r.a)
GROUP BY n HAVING COUNT(*) > 5
    not_at_the_top: r.a
SELECT r.a, r.b FROM r JOIN s ON r.a = s.a AND r.b = s.b JOIN t ON t.a = r.a GROUP BY r.a, r.b
HAVING COUNT(*) > 3
    ring [b,a](r{b,a}(t{a} on a) on b,a; s{b,a} on b,a)
SELECT r.a FROM r JOIN s ON r.a = s.a JOIN t ON t.a = r.a AND t.b = s.b GROUP BY r.a HAVING COUNT(*)
> 3
    ring [a](r{a} on a; s{a,b}(t{a,b} on a,b) on a)
"""


@pytest.mark.parametrize(("sql", "expected"), pairs(CASES))
def test_the_shape_is_the_expected_one(sql: str, expected: str) -> None:
    """`bag{kept}(child on key)`, `[kept]` a virtual root, `?` NULL equal to NULL; else the reason
    and the part of the text that stands in the way."""
    assert drawn(sql) == expected

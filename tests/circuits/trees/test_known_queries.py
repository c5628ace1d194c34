"""Shapes of the shipped workloads' queries, all of TPC-H among them, and of social networks'."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from impctl.workload.load import load_workload
from impctl.workload.models import QuerySpec
from tests.circuits.trees.catalogs import SNB, SYNTHETIC, TPCH
from tests.circuits.trees.drawn import drawn, pairs

WORKLOADS = Path(__file__).parents[3] / "workloads"
CATALOGS = {"tpch": TPCH, "joins": SYNTHETIC}
CHANGED = {"lineitem": 1000, "orders": 250}

SHIPPED = {
    "tpch/q1": "one_table",
    "tpch/q3": "ring orders{o_custkey,o_orderkey,o_orderdate,o_shippriority}(customer{c_custkey} "
    "on c_custkey; lineitem{l_orderkey} on l_orderkey)",
    "tpch/q4": "ring orders{o_orderkey,o_orderpriority}(semi lineitem{l_orderkey} on l_orderkey)",
    "tpch/q5": "ring nation{n_nationkey,n_regionkey,n_name}(customer+orders+lineitem+supplier{"
    "c_nationkey} on c_nationkey; region{r_regionkey} on r_regionkey)",
    "tpch/q6": "one_table",
    "tpch/q7": "one_bag",
    "tpch/q8": "ring orders{o_orderkey,o_custkey,year(o_orderdate)}(lineitem{"
    "l_partkey,l_suppkey,l_orderkey}(part{p_partkey} on p_partkey; supplier{"
    "s_suppkey,s_nationkey}(nation#2{n_nationkey} on n_nationkey) on s_suppkey) on l_orderkey; "
    "customer{c_custkey,c_nationkey}(nation{n_nationkey,n_regionkey}(region{r_regionkey} on "
    "r_regionkey) on n_nationkey) on c_custkey)",
    "tpch/q9": "ring supplier+lineitem+orders+nation{l_partkey,s_suppkey,n_name,year("
    "o_orderdate)}(part{p_partkey} on p_partkey; partsupp{ps_partkey,ps_suppkey} on "
    "ps_partkey,ps_suppkey)",
    "tpch/q10": "ring customer+nation{"
    "c_custkey,c_name,c_acctbal,c_phone,n_name,c_address,c_comment}(orders{o_custkey,o_orderkey}("
    "lineitem{l_orderkey} on l_orderkey) on o_custkey)",
    "tpch/q12": "ring lineitem{l_orderkey,l_shipmode}(orders{o_orderkey} on o_orderkey)",
    "tpch/q14": "bits lineitem{l_partkey}(part{p_partkey} on p_partkey)",
    "tpch/q15": "not_at_the_top",
    "tpch/q18": "ring customer+orders{o_orderkey,c_name,c_custkey,o_orderdate,o_totalprice}("
    "lineitem{l_orderkey} on l_orderkey; semi lineitem#2{l_orderkey} on l_orderkey)",
    "tpch/q19": "one_bag",
    "tpch/q2": "not_at_the_top",
    "tpch/q13": "not_at_the_top",
    "tpch/q16": "call",
    "tpch/q17": "bits lineitem+lineitem#4{l_partkey}(part{p_partkey} on p_partkey)",
    "tpch/q20": "bits supplier{s_nationkey,s_suppkey}(nation{n_nationkey} on n_nationkey; semi "
    "partsupp+lineitem#3{ps_partkey,ps_suppkey}(semi part{p_partkey} on p_partkey) on ps_suppkey)",
    "tpch/q21": "ring supplier{s_suppkey,s_nationkey,s_name}(lineitem+lineitem#2+lineitem#3{"
    "l_suppkey,l_orderkey}(orders{o_orderkey} on o_orderkey) on l_suppkey; nation{n_nationkey} on "
    "n_nationkey)",
    "tpch/q22": "ring customer+customer#2{c_custkey,substring(c_phone, 1, 2)}(anti orders{"
    "o_custkey} on o_custkey)",
    "joins/one_01": "ring r{id,a}(s{a} on a)",
    "joins/one_05": "ring r{id,a}(s{a} on a)",
    "joins/one_10": "ring r{id,a}(s{a} on a)",
    "joins/many_01": "ring [a](s{a} on a; r{a} on a)",
    "joins/many_05": "ring [a](s{a} on a; r{a} on a)",
    "joins/many_10": "ring [a](s{a} on a; r{a} on a)",
}
NETWORK = """\
SELECT 1 FROM edge e1 JOIN edge e2 ON e1.dst = e2.src JOIN edge e3 ON e2.dst = e3.src
    bits edge#2{src,dst}(edge{dst} on dst; edge#3{src} on src)
SELECT e1.src FROM edge e1 JOIN edge e2 ON e1.dst = e2.src JOIN edge e3 ON e2.dst = e3.src JOIN edge
e4 ON e3.dst = e4.src
    bits edge#2{src,dst}(edge{dst} on dst; edge#3{src,dst}(edge#4{src} on src) on src)
SELECT e1.src, COUNT(*) FROM edge e1 JOIN edge e2 ON e1.dst = e2.src JOIN edge e3 ON e2.dst = e3.src
GROUP BY e1.src HAVING COUNT(*) > 10
    ring edge{dst,src}(edge#2{src,dst}(edge#3{src} on src) on src)
SELECT e1.src, COUNT(*) FROM edge e1, edge e2, edge e3, edge e4 WHERE e1.src = e2.src AND e2.src =
e3.src AND e3.src = e4.src GROUP BY e1.src HAVING COUNT(*) > 10
    ring [src](edge{src} on src; edge#2{src} on src; edge#3{src} on src; edge#4{src} on src)
SELECT 1 FROM edge e1, edge e2, edge e3 WHERE e1.dst = e2.src AND e2.dst = e3.src AND e3.dst =
e1.src
    bits edge+edge#2+edge#3{}
SELECT e7.src FROM edge e1, edge e2, edge e3, edge e4, edge e5, edge e6, edge e7 WHERE e1.dst =
e2.src AND e2.dst = e3.src AND e3.dst = e1.src AND e4.dst = e5.src AND e5.dst = e6.src AND e6.dst =
e4.src AND e7.src = e1.src AND e7.dst = e4.src
    bits edge#7{src,dst}(edge+edge#2+edge#3{src} on src; edge#4+edge#5+edge#6{src} on src)
SELECT 1 FROM edge e1, edge e2, edge e3, edge e4 WHERE e1.dst = e2.src AND e2.dst = e3.src AND
e3.dst = e4.src AND e4.dst = e1.src
    bits edge+edge#2+edge#3+edge#4{}
SELECT 1 FROM edge e1, edge e2, edge e3, edge e4 WHERE e1.src = e2.src AND e1.dst = e3.src AND
e2.dst = e4.src
    bits edge{src,dst}(edge#2{src,dst}(edge#4{src} on src) on src; edge#3{src} on src)
SELECT p_id, COUNT(*) FROM person, knows, message WHERE p_id = k_from AND k_to = creator GROUP BY
p_id HAVING COUNT(*) > 100
    ring [p_id](person{p_id} on p_id; knows{k_from,k_to}(message{creator} on creator) on k_from)
SELECT t_name, COUNT(*) FROM person, message, message_tag, tag WHERE creator = p_id AND mt_message =
m_id AND t_id = mt_tag GROUP BY t_name ORDER BY 2 DESC LIMIT 10
    ring tag{t_id,t_name}(message_tag{mt_message,mt_tag}(message{creator,m_id}(person{p_id} on p_id)
    on m_id) on mt_tag)
SELECT city, SUM(length) FROM person, knows, message WHERE p_id = k_from AND k_to = creator GROUP BY
city HAVING SUM(length) > 5000
    ring person{p_id,city}(knows{k_from,k_to}(message{creator} on creator) on k_from)
SELECT t1.t_name, t2.t_name, COUNT(*) FROM message_tag a, message_tag b, tag t1, tag t2 WHERE
a.mt_message = b.mt_message AND a.mt_tag = t1.t_id AND b.mt_tag = t2.t_id GROUP BY t1.t_name,
t2.t_name HAVING COUNT(*) > 3
    one_bag: t1.t_name
SELECT p_id FROM person WHERE EXISTS (SELECT 1 FROM knows, message WHERE k_from = p_id AND k_to =
creator) AND NOT EXISTS (SELECT 1 FROM message WHERE creator = p_id)
    bits person{p_id}(semi knows{k_to,k_from}(message{creator} on creator) on k_from; anti
    message#2{creator} on creator)
SELECT p_id, COUNT(m_id) FROM person LEFT JOIN message ON creator = p_id JOIN knows ON k_from = p_id
GROUP BY p_id HAVING COUNT(m_id) < 3
    ring [p_id](person{p_id}(left message{creator} on creator) on p_id; knows{k_from} on k_from)
"""


@cache
def queries(workload: str) -> Mapping[str, QuerySpec]:
    return load_workload(WORKLOADS / f"{workload}.yaml", {}).queries


@pytest.mark.parametrize(("name", "expected"), SHIPPED.items())
def test_shipped_queries(name: str, expected: str) -> None:
    """Where there is no tree, the reason alone."""
    workload, _, query = name.partition("/")
    result = drawn(queries(workload)[query].sql, CHANGED, CATALOGS[workload])
    assert result.partition(":")[0] == expected


def test_every_query_of_the_workloads_is_in_the_table() -> None:
    """But for those that ask the same with another strategy."""
    names = {
        f"{workload}/{name}"
        for workload in CATALOGS
        for name in queries(workload)
        if not name.endswith(("_spark", "_unfiltered"))
    }
    assert names == SHIPPED.keys()


@pytest.mark.parametrize(("sql", "expected"), pairs(NETWORK))
def test_social_networks(sql: str, expected: str) -> None:
    """Paths, stars, circles, a dumbbell; the queries of messages and tags."""
    assert drawn(sql, {}, SNB) == expected

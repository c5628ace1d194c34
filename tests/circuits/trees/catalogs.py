"""Schemas of TPC-H, of the shipped workloads' synthetic tables, and of a small social network."""

from __future__ import annotations

from collections.abc import Mapping

from impctl.data.schema import DATE, INTEGER, LONG, STRING, Column, Schema, SqlType, decimal

_KINDS: Mapping[str, SqlType] = {
    "k": LONG,
    "i": INTEGER,
    "s": STRING,
    "d": DATE,
    "m": decimal(15, 2),
}
_TPCH = {
    "region": "r_regionkey:k r_name:s r_comment:s",
    "nation": "n_nationkey:k n_name:s n_regionkey:k n_comment:s",
    "customer": "c_custkey:k c_name:s c_address:s c_nationkey:k c_phone:s c_acctbal:m"
    " c_mktsegment:s c_comment:s",
    "orders": "o_orderkey:k o_custkey:k o_orderstatus:s o_totalprice:m o_orderdate:d"
    " o_orderpriority:s o_clerk:s o_shippriority:i o_comment:s",
    "lineitem": "l_orderkey:k l_partkey:k l_suppkey:k l_linenumber:i l_quantity:m"
    " l_extendedprice:m l_discount:m l_tax:m l_returnflag:s l_linestatus:s l_shipdate:d"
    " l_commitdate:d l_receiptdate:d l_shipinstruct:s l_shipmode:s l_comment:s",
    "part": "p_partkey:k p_name:s p_mfgr:s p_brand:s p_type:s p_size:i p_container:s"
    " p_retailprice:m p_comment:s",
    "partsupp": "ps_partkey:k ps_suppkey:k ps_availqty:i ps_supplycost:m ps_comment:s",
    "supplier": "s_suppkey:k s_name:s s_address:s s_nationkey:k s_phone:s s_acctbal:m s_comment:s",
}
_SNB = {
    "person": "p_id:k city:s born:d",
    "knows": "k_from:k k_to:k since:d",
    "message": "m_id:k creator:k created:d length:i",
    "message_tag": "mt_message:k mt_tag:k",
    "tag": "t_id:k t_name:s t_class:k",
    "edge": "src:k dst:k",
}


def _schemas(tables: Mapping[str, str]) -> dict[str, Schema]:
    return {
        table: Schema(
            tuple(
                Column(name, _KINDS[kind])
                for name, kind in (one.split(":") for one in columns.split())
            )
        )
        for table, columns in tables.items()
    }


TPCH = _schemas(_TPCH)
SNB = _schemas(_SNB)
SYNTHETIC = {
    name: Schema(tuple(Column(one, LONG) for one in ("id", *"abcdefghij")))
    for name in (
        *("r", "s", "t", "t5k", "t500k", "s20", "s50", "s500k", "of1", "of5", "of10", "edb"),
        *("k10", "k100", "k1000", "k5000", "k100000", "g5000", "synthetic"),
    )
}

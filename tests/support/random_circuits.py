"""A random query over a random partition, with the circuit that maintains its sketch."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache

from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.flows import BlockedError
from impctl.plan.nodes import Query, scans_of
from impctl.rules.optimize import apply_rules
from impctl.safety.judge import Verdict, check_safety
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query
from tests.support.random_queries import PARTITIONS, SCHEMA, random_sql


@dataclass(frozen=True)
class RandomCircuit:
    """`query` is as it was read, `compiled` made from it after the rules."""

    query: Query
    partition: RangePartition
    verdict: Verdict
    compiled: Compiled


def random_circuit(rng: random.Random) -> RandomCircuit | None:
    """None for a query that the engine does not maintain."""
    sql, partition = random_sql(rng), rng.choice(PARTITIONS)
    original, query, verdict = _read(sql, partition.attribute)
    access = scans_of(query.root)[0].access
    try:
        compiled = compile_plan(query.root, {access: partition}, verdict.key_columns)
    except BlockedError:
        return None
    return RandomCircuit(original, partition, verdict, compiled)


@cache
def _read(sql: str, attribute: str) -> tuple[Query, Query, Verdict]:
    """The query as it is read, the same after the rules, and its safety.

    Kept: the tests of one seed see the same queries.
    """
    original = parse_query(sql, {"t": SCHEMA})
    query = replace(original, root=apply_rules(original.root))
    access = scans_of(query.root)[0].access
    return original, query, check_safety(query, {access: attribute}, [])

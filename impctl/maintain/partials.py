"""A circuit filled, or stepped, from partial aggregates that Spark computes in one pass.

Law: after `fill` the circuit is as if it had been fed every row of the table, after `absorb` as if
stepped with the rows the pass went over; sketch and state come from the same pass. The pass is
itself a plan: the query below its first grouping, grouped by the keys and, unless the sketch is
keyed, by the fragment. Sums of doubles are collected as if all values were finite; should a group
turn out otherwise (`needs_specials`), the pass is repeated with NaN and infinities counted apart.
Out of scope: writing the plan as SQL (`capture.render`), running it (`spark`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from impctl.aliases import AttributeId
from impctl.data.schema import DOUBLE, INTEGER, LONG, SqlType
from impctl.data.vector import Ints, Vector, from_arrow
from impctl.engine.accumulators import Count, ExactSum, FloatSum
from impctl.engine.batch import Batch
from impctl.engine.operators.aggregate import Aggregate as AggregateOperator
from impctl.engine.operators.project import Project as ProjectOperator
from impctl.engine.tags import RowTags
from impctl.expr.nodes import Call, Case, Cast, Compare, CompareOp, Expr, Literal, Or
from impctl.expr.types import type_of
from impctl.maintain.compile import Chain, Compiled
from impctl.maintain.readable import fragment_attribute, with_fragments
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateOutput,
    Attribute,
    Output,
    Plan,
    Project,
    Scan,
    nodes_of,
)
from impctl.sketch.partition import Fragments, RangePartition


@dataclass(frozen=True, slots=True)
class Partials:
    """The pass: its plan, and what its result columns mean, in order.

    `names` are the accumulators' partial columns after `keys` key columns and, if `has_fragment`,
    the fragment. The scan of the plan reads `FRAGMENT_COLUMN` too if `has_fragment`.
    """

    plan: Plan
    key_types: tuple[SqlType, ...]
    has_fragment: bool
    names: tuple[tuple[str, SqlType], ...]
    """The first counts rows."""
    counts_specials: bool

    @property
    def first_name(self) -> int:
        """The place of the first of `names` among the result's columns."""
        return len(self.key_types) + int(self.has_fragment)


def partials(compiled: Compiled, *, counts_specials: bool = False) -> Partials:
    """The pass that fills this circuit, which has a chain."""
    chain = _chain(compiled)
    if chain.first is None or chain.first_node is None:
        return _row_counts(chain)
    operator = compiled.circuit.operators[chain.first]
    assert isinstance(operator, AggregateOperator)
    node = chain.first_node
    child = node.child
    keys = list(node.keys)
    if not operator.is_keyed:
        child = with_fragments(child, (chain.scan.access,))
        keys.append(_fragment_output(chain))
    calls = _calls(compiled, operator, counts_specials)
    plan = Aggregate(
        child,
        tuple(keys),
        tuple(AggregateOutput(_attribute(name, kind), call) for name, kind, call in calls),
        span=node.span,
    )
    names = tuple((name, kind) for name, kind, _ in calls)
    key_types = tuple(kind for _, kind in operator.keys)
    return Partials(plan, key_types, not operator.is_keyed, names, counts_specials)


def _chain(compiled: Compiled) -> Chain:
    assert compiled.chain is not None
    return compiled.chain


def _row_counts(chain: Chain) -> Partials:
    """Without a grouping: qualifying rows per fragment."""
    child = with_fragments(chain.nodes[-1], (chain.scan.access,))
    rows = AggregateOutput(_attribute("rows", LONG), AggregateCall("count"))
    plan = Aggregate(child, (_fragment_output(chain),), (rows,))
    return Partials(plan, (), True, (("rows", LONG),), counts_specials=False)


def _attribute(name: str, kind: SqlType) -> Attribute:
    return Attribute(f"impctl/{name}", name, kind, True)


def _fragment_output(chain: Chain) -> Output:
    attribute = fragment_attribute(chain.scan.access)
    return Output(replace(attribute, id="impctl/key"), attribute.ref())


def _calls(
    compiled: Compiled, operator: AggregateOperator, counts_specials: bool
) -> list[tuple[str, SqlType, AggregateCall]]:
    arguments = _arguments(compiled)
    calls = [("rows", LONG, AggregateCall("count"))]
    for accumulator in operator.accumulators:
        expr = arguments[accumulator.argument]
        slot = accumulator.slot
        match accumulator:
            case Count():
                calls.append((f"c{slot}", LONG, AggregateCall("count", (expr,))))
            case ExactSum():
                calls.append((f"s{slot}", accumulator.result, AggregateCall("sum", (expr,))))
            case FloatSum():
                calls += _float_calls(expr, slot, counts_specials)
    return calls


def _arguments(compiled: Compiled) -> dict[AttributeId, Expr]:
    first = _chain(compiled).first
    assert first is not None
    below = compiled.circuit.operators[first - 1]
    assert isinstance(below, ProjectOperator)
    return dict(below.outputs)


def _float_calls(
    expr: Expr, slot: int, counts_specials: bool
) -> list[tuple[str, SqlType, AggregateCall]]:
    calls: list[tuple[str, SqlType, AggregateCall]] = []
    if counts_specials:
        tests = {
            name: Compare(CompareOp.EQUAL, Cast(expr, DOUBLE), Literal(value, DOUBLE))
            for name, value in (
                ("nan", float("nan")),
                ("pinf", float("inf")),
                ("ninf", float("-inf")),
            )
        }
        one, zero = Literal(1, LONG), Literal(0, LONG)
        for name, test in tests.items():
            marked = Case(((test, one),), zero)
            calls.append((f"{name}{slot}", LONG, AggregateCall("sum", (marked,))))
        nothing = Literal(0.0, type_of(expr) or DOUBLE)
        expr = Case(((Or(tuple(tests.values())), nothing),), expr)
    size = Call("abs", (expr,), type_of(expr))
    calls.append((f"s{slot}", DOUBLE, AggregateCall("sum", (expr,))))
    calls.append((f"m{slot}", DOUBLE, AggregateCall("sum", (size,))))
    return calls


def needs_specials(pass_: Partials, table: pa.Table) -> bool:
    """Whether some double was NaN or infinite, so that the pass must count those apart."""
    if pass_.counts_specials:
        return False
    for index, (name, _) in enumerate(pass_.names):
        if name.startswith("m"):
            vector = from_arrow(table.column(pass_.first_name + index), DOUBLE)
            if not bool(np.isfinite(vector.values).all()):
                return True
    return False


def fill(compiled: Compiled, pass_: Partials, table: pa.Table, partition: RangePartition) -> None:
    """Fill the fresh circuit from the pass's result (columns by position)."""
    first = _chain(compiled).first
    if first is not None:
        start_upper(compiled, first)
    absorb(compiled, pass_, table, partition, 1)


def absorb(
    compiled: Compiled, pass_: Partials, table: pa.Table, partition: RangePartition, sign: int
) -> None:
    """Step the circuit with the pass's result over rows that came, or (`sign` -1) went."""
    chain = _chain(compiled)
    keys = _keys(pass_, table)
    values = {
        name: _numbers(table.column(pass_.first_name + index), kind)
        for index, (name, kind) in enumerate(pass_.names)
    }
    tags = (RowTags(_fragments(chain, pass_, table, partition)),)
    if chain.first is None:
        rows: Ints = values["rows"] * sign
        compiled.circuit.resume(Batch({}, rows, tags), len(compiled.circuit.operators))
        return
    operator = compiled.circuit.operators[chain.first]
    assert isinstance(operator, AggregateOperator)
    output = operator.absorb(keys, values, tags, sign)
    compiled.circuit.resume(output, chain.first + 1)


def rows_told_by(
    compiled: Compiled, pass_: Partials, table: pa.Table, partition: RangePartition
) -> Ints | None:
    """Rows of the table per fragment, shape (size,), as the pass's result tells them.

    None where it does not count every row: where something below its grouping selects some.
    """
    assert isinstance(pass_.plan, Aggregate)
    if not all(isinstance(node, Scan | Project) for node in nodes_of(pass_.plan.child)):
        return None
    rows = _numbers(table.column(pass_.first_name), LONG)
    counts = np.zeros(partition.size, dtype=np.int64)
    np.add.at(counts, _fragments(_chain(compiled), pass_, table, partition), rows)
    return counts


def _keys(pass_: Partials, table: pa.Table) -> list[Vector]:
    return [from_arrow(table.column(i), kind) for i, kind in enumerate(pass_.key_types)]


def _fragments(
    chain: Chain, pass_: Partials, table: pa.Table, partition: RangePartition
) -> Fragments:
    """The fragment of every row of the pass's result."""
    if pass_.has_fragment:
        column = table.column(len(pass_.key_types))
        fragments: Fragments = from_arrow(column, INTEGER).values.astype(np.int32)
        return fragments
    assert chain.first_key is not None
    key = from_arrow(table.column(chain.first_key), pass_.key_types[chain.first_key])
    return partition.fragments_of(key)


def start_upper(compiled: Compiled, first: int) -> None:
    """Give every global aggregate the row it has over empty input, from the root's side down.

    The upper one first: its own row then is in place before rows from below arrive.
    """
    operators: Sequence[Any] = compiled.circuit.operators
    for position in range(len(operators) - 1, first - 1, -1):
        operator = operators[position]
        if isinstance(operator, AggregateOperator) and operator.is_global:
            compiled.circuit.resume(operator.initial(), position + 1)


def _numbers(column: pa.ChunkedArray, kind: SqlType) -> Any:
    vector: Vector = from_arrow(column, kind)
    if vector.valid is None:
        return vector.values
    return np.where(vector.valid, vector.values, np.zeros(1, dtype=vector.values.dtype))


def start_empty(compiled: Compiled) -> None:
    """Bring a fresh circuit to where it stands over the empty table."""
    start_upper(compiled, 0)

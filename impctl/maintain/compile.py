"""A plan turned into a circuit, or the reason why it cannot be maintained exactly.

Law: a plan that compiles is maintained exactly (the sketch equals a recapture's unless a sum of
doubles lay too close to call, which widens it); what the engine cannot compute as Spark does is
named with its place, never approximated. Compile after `plan.rules` split AVG into SUM and COUNT.
Out of scope: whether the sketch is safe (`plan.safety`), touch mode (`maintain.way`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from impctl.aliases import AccessId, AttributeId
from impctl.data.schema import DOUBLE, Kind, SqlType
from impctl.engine.accumulators import Accumulator, Count, sum_of
from impctl.engine.circuit import Circuit, Operator
from impctl.engine.operators import aggregate, project, scan, select
from impctl.engine.operators.merge import Merge
from impctl.errors import ImpctlError
from impctl.expr.nodes import Cast, Expr, Span, columns_of
from impctl.expr.support import Blocker, find_blocker
from impctl.expr.types import sum_type, type_of
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateOutput,
    Attribute,
    Distinct,
    Join,
    Plan,
    Project,
    Scan,
    Select,
    SetOperation,
    Sort,
    TopK,
    Window,
    attributes_of,
    inputs_of,
    nodes_of,
)
from impctl.sketch.partition import RangePartition


class BlockedError(ImpctlError):
    """The plan has a part the engine does not maintain; carries the reason and the place.

    Never leaves the room: `way` turns it into touch mode or recapture.
    """

    def __init__(self, reason: str, span: Span | None) -> None:
        super().__init__(reason, code="not_incremental")
        self.span = span


@dataclass(frozen=True, slots=True)
class Compiled:
    """A circuit for one query with one sketched access, and where its first grouping is.

    `first` is the position of the lowest Aggregate among the operators, None without any;
    `first_node` is its plan node, `first_key` the place of its grouping column that equals the
    partition attribute, where there is one. `chain` lists the plan nodes from the scan up.
    """

    scan: scan.Scan
    circuit: Circuit
    first: int | None
    first_node: Aggregate | None
    first_key: int | None
    chain: tuple[Plan, ...]


def compile_plan(
    root: Plan,
    sketched: Mapping[AccessId, RangePartition],
    key_columns: Mapping[int, Mapping[AccessId, AttributeId]],
) -> Compiled:
    """The circuit for a plan over one table access.

    `key_columns` tells for the i-th node of `nodes_of(root)` which grouping column equals each
    access's partition attribute (`plan.safety`). Raises BlockedError.
    """
    nodes = list(nodes_of(root))
    chain = _chain(root)
    table = chain[0]
    assert isinstance(table, Scan)
    partition = sketched.get(table.access)
    if partition is None:
        raise BlockedError("the table has no sketch to maintain", table.span)
    builder = _Builder([partition], last=_last_aggregate(chain))
    builder.scan = _scan(table, builder.partitions)
    first_key: int | None = None
    for position, node in enumerate(chain[1:], start=1):
        key = key_columns.get(_index(nodes, node), {}).get(table.access)
        keyed = key is not None and _type_in(node, key) == partition.type
        if keyed and key is not None and builder.first is None and isinstance(node, Aggregate):
            first_key = [attribute.id for attribute in attributes_of(node)].index(key)
        builder.add(node, position, keyed=keyed)
    circuit = Circuit(builder.operators, Merge([partition.size]))
    return Compiled(builder.scan, circuit, builder.first, builder.first_node, first_key, chain)


def _index(nodes: Sequence[Plan], node: Plan) -> int:
    return next(index for index, other in enumerate(nodes) if other is node)


def _type_in(node: Plan, attribute: AttributeId) -> SqlType | None:
    """Type of an output column of a node; None when it is not one."""
    return next((found.type for found in attributes_of(node) if found.id == attribute), None)


def _chain(root: Plan) -> tuple[Plan, ...]:
    """The nodes from the scan to the root; BlockedError where the plan branches."""
    chain: list[Plan] = []
    node = root
    while True:
        chain.append(node)
        inputs = inputs_of(node)
        if len(inputs) > 1:
            _refuse(node)
        if not inputs:
            break
        node = inputs[0]
    return tuple(reversed(chain))


def _last_aggregate(chain: Sequence[Plan]) -> int:
    positions = [index for index, node in enumerate(chain) if isinstance(node, Aggregate)]
    return positions[-1] if positions else 0


def _scan(table: Scan, partitions: Sequence[RangePartition]) -> scan.Scan:
    columns = []
    for attribute in table.attributes:
        if attribute.type is None or attribute.type.kind is Kind.OTHER:
            raise BlockedError(
                f"column `{attribute.name}` has a type the engine does not know", table.span
            )
        columns.append((attribute.id, attribute.name, attribute.type))
    return scan.Scan(columns, partitions)


def _refuse(node: Plan) -> NoReturn:
    names: dict[type, str] = {
        Join: "a join",
        SetOperation: "a set operation",
        Distinct: "DISTINCT",
        TopK: "LIMIT",
        Window: "a window function",
    }
    name = names.get(type(node), type(node).__name__)
    if isinstance(node, Join):
        name = f"{node.kind.value} join"
    if isinstance(node, SetOperation):
        name = node.kind.value.upper()
    raise BlockedError(f"{name} is not maintained by the engine yet", node.span)


class _Builder:
    """Collects operators from the scan up; knows which columns carry an error bound."""

    def __init__(self, partitions: Sequence[RangePartition], last: int) -> None:
        self.partitions = tuple(partitions)
        self.scan = scan.Scan((), self.partitions)
        self.operators: list[Operator] = []
        self.first: int | None = None
        self.first_node: Aggregate | None = None
        self._approximate: frozenset[AttributeId] = frozenset()
        self._last = last
        self._aggregates = 0

    def add(self, node: Plan, position: int, *, keyed: bool) -> None:
        """Append the operators for one node."""
        match node:
            case Select():
                self._block(node.predicate, node.span, allowed=position > self._last)
                sure = position < self._last
                self.operators.append(select.Select(node.predicate, must_be_sure=sure))
            case Project():
                self._project(node)
            case Aggregate():
                self._aggregate(node, keyed=keyed)
            case Sort():
                pass
            case _:
                _refuse(node)

    def _block(self, expr: Expr, span: Span | None, *, allowed: bool) -> None:
        blocker = find_blocker(expr, self._approximate)
        if blocker is None and not allowed and columns_of(expr) & self._approximate:
            blocker = Blocker(expr, "a condition on a sum of doubles below another grouping")
        if blocker is not None:
            raise BlockedError(blocker.reason, blocker.part.span or span)

    def _project(self, node: Project) -> None:
        outputs = []
        approximate = set()
        for output in node.outputs:
            self._block(output.expr, node.span, allowed=True)
            outputs.append((output.attribute.id, output.expr))
            if columns_of(output.expr) & self._approximate:
                approximate.add(output.attribute.id)
        self._approximate = frozenset(approximate)
        self.operators.append(project.Project(outputs))

    def _aggregate(self, node: Aggregate, *, keyed: bool) -> None:
        if node.grouping_sets is not None:
            raise BlockedError("GROUPING SETS are not maintained by the engine yet", node.span)
        inputs = [(key.attribute.id, key.expr) for key in node.keys]
        arguments, columns, inexact = self._calls(node)
        for _, expr in (*inputs, *arguments):
            self._block(expr, node.span, allowed=True)
            if columns_of(expr) & self._approximate:
                raise BlockedError("grouping or summing a sum of doubles again", node.span)
        self.operators.append(project.Project((*inputs, *arguments)))
        if self.first is None:
            self.first, self.first_node = len(self.operators), node
        keys = [(key.attribute.id, _known(type_of(key.expr), node.span)) for key in node.keys]
        name = f"aggregate{self._aggregates}"
        self.operators.append(aggregate.Aggregate(name, keys, columns, accesses=1, is_keyed=keyed))
        self._aggregates += 1
        self._approximate = frozenset(inexact)

    def _calls(
        self, node: Aggregate
    ) -> tuple[list[tuple[AttributeId, Expr]], list[aggregate.AggregateColumn], set[AttributeId]]:
        """Arguments to compute, output columns, and which outputs carry an error bound."""
        slots: dict[Expr, int] = {}
        columns: list[aggregate.AggregateColumn] = []
        inexact: set[AttributeId] = set()
        for output in node.aggregates:
            argument = _argument(output)
            if argument is None:
                columns.append(_column(output.attribute, None, None, node.span))
                continue
            slot = slots.setdefault(argument, len(slots))
            name = _slot_name(node, slot)
            guard = Count(name, slot)
            if output.call.function == "count":
                columns.append(_column(output.attribute, guard, None, node.span))
                continue
            total = _sum(argument, name, slot, output.call.span or node.span)
            if type_of(argument) is not None and _known(type_of(argument), None).is_fractional:
                inexact.add(output.attribute.id)
            columns.append(_column(output.attribute, total, guard, node.span))
        arguments = [(_slot_name(node, slot), expr) for expr, slot in slots.items()]
        return arguments, columns, inexact


def _slot_name(node: Aggregate, slot: int) -> AttributeId:
    first = node.aggregates[0].attribute.id
    return f"{first}/argument{slot}"


def _known(found: SqlType | None, span: Span | None) -> SqlType:
    if found is None or found.kind is Kind.OTHER:
        raise BlockedError("an expression has a type the engine does not know", span)
    return found


def _argument(output: AggregateOutput) -> Expr | None:
    """The argument of a call the engine keeps; None for COUNT(*). BlockedError for others."""
    call: AggregateCall = output.call
    if call.function not in ("count", "sum"):
        raise BlockedError(
            f"{call.function.upper()} is not maintained by the engine yet", call.span
        )
    if call.distinct:
        raise BlockedError(
            f"{call.function.upper()}(DISTINCT) is not maintained by the engine yet", call.span
        )
    if call.condition is not None:
        raise BlockedError("FILTER (WHERE) is not maintained by the engine yet", call.span)
    if len(call.arguments) > 1:
        raise BlockedError(f"{call.function.upper()} of several columns", call.span)
    return call.arguments[0] if call.arguments else None


def _sum(argument: Expr, name: AttributeId, slot: int, span: Span | None) -> Accumulator:
    kind = _known(type_of(argument), span)
    result = sum_type(kind)
    if result is None:
        raise BlockedError(f"SUM over `{kind}` is left to Spark", span)
    return sum_of(name, slot, kind, result, integral=_is_integral(argument))


def _is_integral(argument: Expr) -> bool:
    """Whether the argument is whole numbers as doubles, as AVG over integers is split."""
    if not isinstance(argument, Cast) or argument.type != DOUBLE:
        return False
    inner = type_of(argument.operand)
    return inner is not None and (inner.is_integral or inner.kind is Kind.BOOLEAN)


def _column(
    attribute: Attribute, accumulator: Accumulator | None, guard: Count | None, span: Span | None
) -> aggregate.AggregateColumn:
    return aggregate.AggregateColumn(attribute.id, _known(attribute.type, span), accumulator, guard)

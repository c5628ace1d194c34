"""Frozen plan nodes.

Law: every column has one identity (`Attribute.id`), unique in the whole plan, so that an expression
means the same wherever it is moved; names are for people and for the result. HAVING is a Select
above an Aggregate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from operator import is_
from typing import Self, TypeVar, cast

from msgspec import Struct
from msgspec.structs import astuple, replace

from impctl.data.schema import Schema, SqlType, other
from impctl.expr import nodes as e
from impctl.types import AccessId, AttributeId, ColumnName, FixpointId, TableName


class BestValue(Struct, frozen=True):
    """A column, by position, whose least (or greatest) value is the best."""

    place: int
    greatest: bool = False

    @property
    def function(self) -> str:
        return "max" if self.greatest else "min"


class BestOnly(Struct, frozen=True):
    """The rows that a fixpoint keeps if only the best of each group count. `keys` are the positions
    of the group columns, ascending. A row stays if one of its `values` is the best of its group,
    ignoring NULL; ties stay together, and in groups with only NULL all rows do. With `keeps_null`
    rows with NULL always stay, because rows derived from them may be better. Rows that others beat
    derive nothing, so a recursion without an end, such as costs along a cycle, may get one."""

    keys: tuple[int, ...]
    values: tuple[BestValue, ...]
    keeps_null: bool = False

    def __str__(self) -> str:
        """For fingerprints."""
        values = (f"{value.function} {value.place}" for value in self.values)
        suffix = " null" if self.keeps_null else ""
        return f"best {', '.join(values)} by {', '.join(map(str, self.keys))}{suffix}"


class LiveRows(Struct, frozen=True):
    """Rows of a table with an expiry are live if `column`, a TIMESTAMP or DATE, is later than a
    constant of its type. In a plan it is an ordinary selection right above each scan of the
    table."""

    column: ColumnName
    later_than: e.Literal

    def condition(self, column: e.Expr) -> e.Expr:
        """The predicate over a reference to the column."""
        return e.Compare(e.CompareOp.GREATER, column, self.later_than)


Catalog = Mapping[TableName, Schema]
"""Schemas of the tables a query may name."""


class Attribute(Struct, frozen=True):
    """An output column of a node. `type` is None if impctl does not know it."""

    id: AttributeId
    name: ColumnName
    type: SqlType | None
    nullable: bool = True

    def ref(self, span: e.Span | None = None) -> e.ColumnRef:
        """An unknown type becomes OTHER."""
        return e.ColumnRef(self.id, self.type or other("unknown"), self.nullable, span=span)


class ComputedColumn(e.Clause, frozen=True):
    """`expr AS attribute`."""

    attribute: Attribute
    expr: e.Expr

    @staticmethod
    def unchanged(attributes: Iterable[Attribute]) -> tuple[ComputedColumn, ...]:
        """The attributes as output columns."""
        return tuple(ComputedColumn(attribute, attribute.ref()) for attribute in attributes)


_Known = TypeVar("_Known")


def renamed(
    outputs: Iterable[ComputedColumn], known: Mapping[AttributeId, _Known]
) -> dict[AttributeId, _Known]:
    """What is known of columns, for those that the outputs pass on unchanged."""
    return {
        output.attribute.id: known[output.expr.id]
        for output in outputs
        if isinstance(output.expr, e.ColumnRef) and output.expr.id in known
    }


class AggregateCall(e.Node, e.Clause, frozen=True):
    """`function([DISTINCT] arguments) [FILTER (WHERE condition)]`; COUNT(*) has no arguments.
    `function` is lower case: count, sum, avg, min, max, or any other name Spark knows."""

    function: str
    arguments: tuple[e.Expr, ...] = ()
    distinct: bool = False
    condition: e.Expr | None = None


class AggregateOutput(e.Clause, frozen=True):
    """`call AS attribute`."""

    attribute: Attribute
    call: AggregateCall


class JoinKind(StrEnum):
    INNER = "inner"
    LEFT = "left outer"
    RIGHT = "right outer"
    FULL = "full outer"
    SEMI = "semi"
    ANTI = "anti"


class SetKind(StrEnum):
    UNION = "union"
    EXCEPT = "except"
    INTERSECT = "intersect"


class PlanNode(e.Node, frozen=True):
    """A node of a plan; its `expressions` are without those of nodes below."""

    @property
    def inputs(self) -> tuple[Plan, ...]:
        """Left to right."""
        inputs = [value for value in astuple(self) if isinstance(value, PlanNode)]
        return cast("tuple[Plan, ...]", tuple(inputs))

    def with_inputs(self, inputs: Iterable[Plan]) -> Self:
        names = (n for n in self.__struct_fields__ if isinstance(getattr(self, n), PlanNode))
        news = dict(zip(names, inputs, strict=True))
        return replace(self, **news) if news else self

    def map_inputs(self, change: Callable[[Plan], Plan]) -> Self:
        """The node over its changed inputs; the same object if none changes."""
        inputs = self.inputs
        changed = tuple(map(change, inputs))
        return self if all(map(is_, changed, inputs)) else self.with_inputs(changed)

    @property
    def added(self) -> tuple[Attribute, ...]:
        """The columns that the node adds to those of its inputs, in order."""
        return tuple(e.outermost(self, Attribute))

    def map_added(self, change: Callable[[Attribute], Attribute]) -> Self:
        """The node with each of `added` changed."""
        return e.with_changed(self, Attribute, change)

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """The output columns."""
        return ()

    @property
    def ids(self) -> frozenset[AttributeId]:
        """The identities of the output columns."""
        return frozenset(attribute.id for attribute in self.attributes)

    def walk(self) -> Iterator[Plan]:
        """The node and everything below it, outermost first, left to right."""
        pending = [cast("Plan", self)]
        while pending:
            yield (node := pending.pop())
            pending.extend(reversed(node.inputs))

    @property
    def scans(self) -> tuple[Scan, ...]:
        """All table accesses, left to right."""
        return tuple(node for node in self.walk() if isinstance(node, Scan))


class Unary(PlanNode, frozen=True):
    """A node with one input, whose columns it outputs, and its own behind them."""

    child: Plan

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        return (*self.child.attributes, *self.added)


class OneRow(PlanNode, frozen=True):
    """The relation of a SELECT without FROM: one row without columns."""


class Scan(PlanNode, frozen=True):
    """One occurrence of a table; `span` covers the table's name in the SQL text."""

    access: AccessId
    table: TableName
    attributes: tuple[Attribute, ...]


class Select(Unary, frozen=True):
    """Rows for which the predicate is true (WHERE, HAVING)."""

    predicate: e.Expr


class Project(Unary, frozen=True):
    """Exactly these output columns, in this order; keeps duplicates."""

    outputs: tuple[ComputedColumn, ...]

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        return tuple(output.attribute for output in self.outputs)


class Join(PlanNode, frozen=True):
    """Without a `condition` a cross join. SEMI and ANTI output the left columns only. `null_aware`
    marks the ANTI join of NOT IN, which drops a left row if any comparison is NULL."""

    kind: JoinKind
    left: Plan
    right: Plan
    condition: e.Expr | None
    null_aware: bool = False

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        left, right = self.left.attributes, self.right.attributes
        if self.kind in (JoinKind.SEMI, JoinKind.ANTI):
            return left
        if self.kind in (JoinKind.RIGHT, JoinKind.FULL):
            left = _nullable(left)
        if self.kind in (JoinKind.LEFT, JoinKind.FULL):
            right = _nullable(right)
        return (*left, *right)


class Aggregate(Unary, frozen=True):
    """GROUP BY `keys`; without keys one global group, also of empty input. `grouping_sets` are
    tuples of indices into `keys`; None is plain GROUP BY."""

    keys: tuple[ComputedColumn, ...]
    aggregates: tuple[AggregateOutput, ...]
    grouping_sets: tuple[tuple[int, ...], ...] | None = None

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        keys = (key.attribute for key in self.keys)
        return (*keys, *(output.attribute for output in self.aggregates))

    @property
    def common_keys(self) -> tuple[ComputedColumn, ...]:
        """The keys that are in every grouping set."""
        sets = self.grouping_sets or ()
        return tuple(
            key for index, key in enumerate(self.keys) if all(index in chosen for chosen in sets)
        )


class Distinct(Unary, frozen=True):
    """Each row once."""


class SetOperation(PlanNode, frozen=True):
    """UNION, EXCEPT or INTERSECT, with or without ALL. Output i of `attributes` comes from column i
    of either side."""

    kind: SetKind
    all: bool
    left: Plan
    right: Plan
    attributes: tuple[Attribute, ...]


class SortKey(e.Clause, frozen=True):
    """One ORDER BY term with explicit direction and position of NULLs."""

    expr: e.Expr
    descending: bool
    nulls_first: bool


class Sort(Unary, frozen=True):
    """ORDER BY without LIMIT, which has no effect on the set of rows."""

    order: tuple[SortKey, ...]


class TopK(Unary, frozen=True):
    """ORDER BY ... LIMIT count OFFSET offset; an empty order is LIMIT alone. `count` None is OFFSET
    alone. With `rank` (row_number, rank or dense_rank), the rows of each window partition whose
    rank is at most `count`, and the rank as one more column; `order` is the call's and `offset`
    0."""

    order: tuple[SortKey, ...]
    count: int | None
    offset: int = 0
    rank: WindowCall | None = None

    @property
    def partition_by(self) -> tuple[e.Expr, ...]:
        """Partition expressions of the rank; empty for ORDER BY ... LIMIT."""
        return () if self.rank is None else self.rank.partition_by


class WindowCall(e.Node, e.Clause, frozen=True):
    """`function(arguments) OVER (PARTITION BY ... ORDER BY ... frame)`."""

    attribute: Attribute
    function: str
    arguments: tuple[e.Expr, ...]
    partition_by: tuple[e.Expr, ...]
    order: tuple[SortKey, ...]
    frame: str | None = None


class Window(Unary, frozen=True):
    """The child's columns and one more per call."""

    calls: tuple[WindowCall, ...]


class Explode(Unary, frozen=True):
    """The child's rows once per element of an array or map, with columns `made` by the function;
    with `outer` a row without an element once, with NULL."""

    function: str
    array: e.Expr
    made: tuple[Attribute, ...]
    outer: bool


class Witness(Unary, frozen=True):
    """Rows that are first by one of the `orders` among rows with equal `partition_by`, with ties; a
    row that is first by two orders occurs twice. Only `rules.witnesses` makes it."""

    partition_by: tuple[e.Expr, ...]
    orders: tuple[tuple[SortKey, ...], ...]


class Recursive(PlanNode, frozen=True):
    """In a step, the rows of the innermost enclosing `Fixpoint` with this id."""

    fixpoint: FixpointId
    attributes: tuple[Attribute, ...]


class Fixpoint(PlanNode, frozen=True):
    """The least T with T = base UNION step, where `Recursive` leaves of the step read T. Columns
    match by position. `is_set`: each row once (NULL equals NULL), or only the `best` rows; else
    every derivation counts (UNION ALL), in at most `levels` levels (None: 100). If it `chooses`, it
    is sketched by one derivation of each row; if it `answers`, by all derivations of the answer."""

    id: FixpointId
    base: Plan
    step: Plan
    attributes: tuple[Attribute, ...]
    is_set: bool
    levels: int | None = None
    best: BestOnly | None = None
    chooses: bool = False
    answers: bool = False


Plan = (
    Scan
    | Select
    | Project
    | Join
    | Aggregate
    | Distinct
    | SetOperation
    | Sort
    | TopK
    | Window
    | Explode
    | Witness
    | Recursive
    | Fixpoint
    | OneRow
)


class Query(Struct, frozen=True):
    """A parsed query. `nondeterministic`: constructs whose result may differ between runs;
    `mentions`: tables that the text names, read or not, in order; `cut`: LIMIT of the rows; `live`:
    conditions on rows of tables with an expiry; `unused`: fixpoints of WITH entries that the plan
    does not have."""

    sql: str
    root: Plan
    nondeterministic: tuple[tuple[str, e.Span | None], ...] = ()
    mentions: tuple[tuple[e.Span, TableName], ...] = ()
    cut: int | None = None
    live: tuple[tuple[TableName, LiveRows], ...] = ()
    unused: tuple[Fixpoint, ...] = ()

    @property
    def tables(self) -> tuple[TableName, ...]:
        return tuple(dict.fromkeys(table for _, table in self.mentions))

    def __hash__(self) -> int:
        return hash(self.sql)  # nearly unique; a plan is large and does not cache its hash


def _nullable(attributes: tuple[Attribute, ...]) -> tuple[Attribute, ...]:
    return tuple(replace(attribute, nullable=True) for attribute in attributes)

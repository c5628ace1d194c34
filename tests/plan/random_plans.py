"""Random plans over two tiny tables, biased towards what a sketch can break: HAVING, top-k, joins.

Law: everything follows from the seed. Plans are typed, but not sensible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from impctl.data.schema import DOUBLE, INTEGER, LONG, Column, Schema, SqlType, decimal
from impctl.expr.nodes import And, Cast, Compare, CompareOp, Expr, Literal
from impctl.expr.types import type_of
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateOutput,
    Attribute,
    ComputedColumn,
    Distinct,
    Join,
    JoinKind,
    Plan,
    Project,
    Scan,
    Select,
    SetKind,
    SetOperation,
    Sort,
    SortKey,
    TopK,
    Window,
    WindowCall,
    attributes_of,
)
from tests.plan.call_types import call_type, other_call, summed_type
from tests.plan.random_exprs import ORDERED, ExprMaker
from tests.support.schemas import schema_of

MONEY = decimal(6, 1)
CATALOG = {
    "t": schema_of("g int, p int, v int, d double, s string"),
    "u": Schema((Column("h", INTEGER), Column("q", INTEGER), Column("w", MONEY))),
}
_CALLS = (*("count", "sum") * 3, *("min", "max", "max", "avg", "bool_or", "bool_and", "count_if"))


@dataclass
class PlanMaker(ExprMaker):
    """Makes one plan after another from one source of randomness."""

    accesses: dict[str, int] = field(default_factory=dict)
    made: int = 0
    drawn: Sequence[str] = ("t", "t", "u")
    catalog: Mapping[str, Schema] = field(default_factory=lambda: CATALOG)

    def plan(self) -> Plan:
        """A plan of moderate size."""
        root = self._node(self.rng.choice((1, 2, 2, 3, 3, 4)))
        if self.rng.random() < 0.15:
            root = self._rank_filter(root)
        if self.rng.random() < 0.2:
            root = Sort(root, (self._sort_key(attributes_of(root)),))
        return root

    def _fresh(self, sql_type: SqlType | None, *, nullable: bool = True) -> Attribute:
        self.made += 1
        return Attribute(f"c{self.made}", f"c{self.made}", sql_type, nullable)

    def _node(self, depth: int) -> Plan:
        if depth <= 0:
            return self._scan()
        makers: Sequence[tuple[int, Callable[[int], Plan]]] = (
            (8, self._aggregated),
            (5, self._select),
            (3, self._project),
            (4, self._join),
            (1, self._distinct),
            (2, self._set_operation),
            (4, self._top),
            (1, self._window),
            (2, lambda at: self._rank_filter(self._node(at - 1))),
        )
        weights = [weight for weight, _ in makers]
        maker = self.rng.choices([make for _, make in makers], weights)[0]
        return maker(depth)

    def _scan(self) -> Scan:
        table = self.rng.choice(self.drawn)
        self.accesses[table] = self.accesses.get(table, 0) + 1
        access = f"{table}#{self.accesses[table]}"
        attributes = tuple(
            Attribute(f"{access}.{column.name}", column.name, column.type)
            for column in self.catalog[table]
        )
        return Scan(access, table, attributes)

    def _select(self, depth: int) -> Plan:
        child = self._node(depth - 1)
        return Select(child, self.predicate(attributes_of(child)))

    def _project(self, depth: int) -> Plan:
        child = self._node(depth - 1)
        attributes = attributes_of(child)
        outputs = []
        for _ in range(self.rng.randint(1, 3)):
            expr = (
                self.rng.choice(attributes).ref()
                if self.rng.random() < 0.5
                else self.number(attributes, 2)
            )
            outputs.append(ComputedColumn(self._fresh(type_of(expr)), expr))
        return Project(child, tuple(outputs))

    def _aggregated(self, depth: int) -> Plan:
        child = self._node(depth - 1)
        attributes = attributes_of(child)
        keys = [self._key(attributes) for _ in range(self.rng.choice((0, 1, 1, 1, 2)))]
        calls = [self._call(attributes) for _ in range(self.rng.choice((0, 1, 1, 2)))]
        if not keys and not calls:
            calls = [AggregateCall("count")]
        sets = None
        if keys and self.rng.random() < 0.08:
            whole = tuple(range(len(keys)))
            sets = (whole, self.rng.choice(((), whole[:1])))
            sets = sets if sets[0] != sets[1] else (whole,)
        plan: Plan = Aggregate(
            child,
            tuple(ComputedColumn(self._fresh(type_of(key)), key) for key in keys),
            tuple(AggregateOutput(self._fresh(call_type(call)), call) for call in calls),
            sets,
        )
        choice = self.rng.random()
        if choice < 0.55:
            plan = Select(plan, self.predicate(attributes_of(plan)))
        elif choice < 0.7:
            plan = self._limited(plan)
        return plan

    def _key(self, attributes: Sequence[Attribute]) -> Expr:
        if self.rng.random() < 0.85:
            return self.rng.choice(attributes).ref()
        return self.number(attributes, 1)

    def _call(self, attributes: Sequence[Attribute]) -> AggregateCall:
        rng = self.rng
        condition = self.predicate(attributes) if rng.random() < 0.12 else None
        name = rng.choice(_CALLS)
        if name == "max" and rng.random() < 0.2:
            return other_call(rng, attributes, condition)
        if name == "count" and rng.random() < 0.5:
            return AggregateCall("count", (), False, condition)
        if name in ("bool_or", "bool_and", "count_if"):
            return AggregateCall(name, (self.predicate(attributes, 1),), False, condition)
        argument: Expr = rng.choice(attributes).ref()
        if name not in ("count", "min", "max"):
            argument = self.number(attributes, rng.choice((0, 0, 0, 1, 2)))
        distinct = rng.random() < 0.15 and name in ("count", "sum")
        return AggregateCall(name, (argument,), distinct, condition)

    def _join(self, depth: int) -> Plan:
        kind = self.rng.choice(
            (JoinKind.INNER,) * 5
            + (JoinKind.LEFT, JoinKind.RIGHT, JoinKind.FULL)
            + (JoinKind.SEMI,) * 2
            + (JoinKind.ANTI,)
        )
        left, right = self._node(depth - 1), self._node(self.rng.randint(0, depth - 1))
        condition = self._condition(attributes_of(left), attributes_of(right))
        null_aware = kind is JoinKind.ANTI and self.rng.random() < 0.3
        return Join(kind, left, right, condition, null_aware)

    def _condition(self, left: Sequence[Attribute], right: Sequence[Attribute]) -> Expr | None:
        if self.rng.random() < 0.1:
            return None
        pairs = [(a, b) for a in left for b in right if a.type == b.type and a.type is not None]
        if pairs and self.rng.random() < 0.8:
            a, b = self.rng.choice(pairs)
            op = self.rng.choice((CompareOp.EQUAL,) * 5 + (*ORDERED, CompareOp.NULL_SAFE_EQUAL))
            equal = Compare(op, a.ref(), b.ref())
            if self.rng.random() < 0.25:
                return And((equal, self.predicate((*left, *right))))
            return equal
        return self.predicate((*left, *right))

    def _distinct(self, depth: int) -> Plan:
        return Distinct(self._node(depth - 1))

    def _set_operation(self, depth: int) -> Plan:
        left, right = self._node(depth - 1), self._node(self.rng.randint(0, depth - 1))
        wanted = self.rng.choice((INTEGER, INTEGER, LONG, DOUBLE))
        width = self.rng.randint(1, 2)
        left, right = self._narrowed(left, wanted, width), self._narrowed(right, wanted, width)
        outputs = tuple(self._fresh(wanted) for _ in range(width))
        kind = self.rng.choice(
            (SetKind.UNION, SetKind.UNION, SetKind.UNION, SetKind.EXCEPT, SetKind.INTERSECT)
        )
        return SetOperation(kind, self.rng.random() < 0.6, left, right, outputs)

    def _narrowed(self, plan: Plan, wanted: SqlType, width: int) -> Plan:
        """The plan with `width` columns of one type, by plain columns where it has them."""
        same = [a.ref() for a in attributes_of(plan) if a.type == wanted]
        outputs = []
        for _ in range(width):
            expr: Expr
            if same:
                expr = self.rng.choice(same)
            else:
                expr = self.number(attributes_of(plan), 0)
                expr = expr if type_of(expr) == wanted else Cast(expr, wanted)
                if wanted in (INTEGER, LONG) and type_of(expr) == DOUBLE:
                    expr = Literal(1, wanted)
            outputs.append(ComputedColumn(self._fresh(wanted), expr))
        return Project(plan, tuple(outputs))

    def _top(self, depth: int) -> Plan:
        return self._limited(self._node(depth - 1))

    def _limited(self, child: Plan) -> Plan:
        attributes = attributes_of(child)
        order = [self._sort_key(attributes) for _ in range(self.rng.choice((1, 1, 2)))]
        if self.rng.random() < 0.4:
            order += [SortKey(a.ref(), False, self.rng.random() < 0.5) for a in attributes]
        if self.rng.random() < 0.03:
            order = []
        offset = 1 if self.rng.random() < 0.15 else 0
        return TopK(child, tuple(order), self.rng.choice((1, 1, 2, 3)), offset)

    def _sort_key(self, attributes: Sequence[Attribute]) -> SortKey:
        expr = (
            self.rng.choice(attributes[-2:]).ref()
            if self.rng.random() < 0.85
            else self.number(attributes, 1)
        )
        return SortKey(expr, self.rng.random() < 0.6, self.rng.random() < 0.4)

    def _window(self, depth: int) -> Plan:
        return self._windowed(self._node(depth - 1))

    def _windowed(
        self,
        child: Plan,
        functions: Sequence[str] = ("row_number", "rank", "dense_rank", "sum", "count"),
    ) -> Window:
        attributes = attributes_of(child)
        name = self.rng.choice(functions)
        arguments = (self.number(attributes, 0),) if name in ("sum", "count") else ()
        result = {"sum": summed_type(arguments), "count": LONG}.get(name, INTEGER)
        partition = tuple(
            self.rng.choice(attributes).ref() for _ in range(self.rng.choice((0, 1, 1)))
        )
        order = tuple(self._sort_key(attributes) for _ in range(self.rng.choice((1, 1, 2))))
        if self.rng.random() < 0.4:
            order += tuple(SortKey(a.ref(), False, self.rng.random() < 0.5) for a in attributes)
        call = WindowCall(self._fresh(result), name, arguments, partition, order)
        return Window(child, (call,))

    def _rank_filter(self, child: Plan) -> Plan:
        """The first ranks per partition, now and then with a condition besides."""
        rng = self.rng
        below = self._windowed(child, ("row_number", "rank", "dense_rank"))
        rank = below.calls[0].attribute
        op = rng.choice((CompareOp.LESS_EQUAL, CompareOp.LESS, CompareOp.EQUAL))
        within = Compare(op, rank.ref(), Literal(rng.choice((1, 2, 3)), INTEGER))
        if rng.random() < 0.2:
            return Select(below, And((self.predicate(attributes_of(child)), within)))
        return Select(below, within)

"""Random plans over tiny tables, biased towards operators that a sketch can break."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from random import Random

from msgspec import Struct, field

from impctl.data.schema import (
    BOOLEAN,
    BYTE,
    DOUBLE,
    INTEGER,
    LONG,
    STRING,
    Column,
    Schema,
    SqlType,
    decimal,
)
from impctl.expr import nodes as e
from impctl.expr.types import type_of
from impctl.plan import nodes as p
from impctl.sql.aggregates import result_type
from tests.plan.catalogs import schema_of


def other_call(
    rng: Random, attributes: Sequence[p.Attribute], condition: e.Expr | None = None
) -> p.AggregateCall:
    """A call whose value is not exact, or not deterministic with ties."""
    name = rng.choice(("variance", "stddev_pop", "min_by", "max_by"))
    one, other = rng.choice(attributes).ref(), rng.choice(attributes).ref()
    if name.endswith("_by"):
        return p.AggregateCall(name, (one, other), False, condition)
    numbers = [a for a in attributes if a.type is not None and a.type.is_numeric]
    if not numbers:
        return p.AggregateCall("count", (), False, condition)
    return p.AggregateCall(name, (rng.choice(numbers).ref(),), False, condition)


ORDERED = (
    e.CompareOp.LESS,
    e.CompareOp.LESS_EQUAL,
    e.CompareOp.GREATER,
    e.CompareOp.GREATER_EQUAL,
    e.CompareOp.GREATER,
    e.CompareOp.GREATER_EQUAL,
)
EQUALITIES = (e.CompareOp.EQUAL, e.CompareOp.NOT_EQUAL, e.CompareOp.NULL_SAFE_EQUAL)


class ExprMaker(Struct, dict=True):
    """Makes random expressions."""

    rng: Random

    def number(self, attributes: Sequence[p.Attribute], depth: int) -> e.Expr:
        """A numeric expression of a known type."""
        numeric = [a for a in attributes if a.type is not None and a.type.is_numeric]
        for _ in range(6):
            expr = self._number(numeric, attributes, depth)
            result = type_of(expr)
            if result is not None and result.is_numeric:
                return expr
        return e.Literal(1, INTEGER)

    def _number(
        self, numeric: Sequence[p.Attribute], attributes: Sequence[p.Attribute], depth: int
    ) -> e.Expr:
        rng = self.rng
        if depth <= 0:
            return rng.choice(numeric).ref() if numeric else self._literal()
        inner = self._number(numeric, attributes, depth - 1)
        match rng.randrange(10):
            case 0:
                return e.Negate(inner)
            case 1 | 2:
                return e.Arithmetic(
                    rng.choice((e.ArithmeticOp.ADD, e.ArithmeticOp.SUBTRACT)),
                    inner,
                    self._number(numeric, attributes, depth - 1),
                )
            case 3:
                return e.Arithmetic(e.ArithmeticOp.MULTIPLY, inner, self._literal())
            case 4:
                other = self._number(numeric, attributes, depth - 1)
                return e.Arithmetic(e.ArithmeticOp.MULTIPLY, inner, other)
            case 5:
                divisor = e.Literal(rng.choice((-2, 2, 3)), INTEGER)
                return e.Arithmetic(e.ArithmeticOp.DIVIDE, inner, divisor)
            case 6:
                result = type_of(inner)
                to_long = result is not None and result.is_integral and rng.random() < 0.5
                return e.Cast(inner, LONG if to_long else DOUBLE)
            case 7:
                return e.Coalesce((inner, self._literal()))
            case 8:
                return e.Call("abs", (inner,), type_of(inner))
            case _:
                branch = (self.predicate(attributes, 1), inner)
                default: e.Expr = e.Literal(None, type_of(inner) or INTEGER)
                return e.Case((branch,), self._literal() if rng.random() < 0.6 else default)

    def _literal(self) -> e.Literal:
        rng = self.rng
        if rng.random() < 0.15:
            return e.Literal(rng.choice((-1.5, 0.0, 0.5, float("nan"))), DOUBLE)
        if rng.random() < 0.1:
            return e.Literal(Decimal(rng.choice(("-1.5", "0.0", "2.5"))), decimal(2, 1))
        return e.Literal(rng.choice((-2, -1, 0, 0, 1, 1, 2, 3, 4)), INTEGER)

    def predicate(self, attributes: Sequence[p.Attribute], depth: int = 2) -> e.Expr:
        """A condition, mostly a comparison of one of the last columns with a literal."""
        choice = self.rng.random()
        if depth > 0 and choice < 0.14:
            return e.And(
                (self.predicate(attributes, depth - 1), self.predicate(attributes, depth - 1))
            )
        if depth > 0 and choice < 0.22:
            return e.Or(
                (self.predicate(attributes, depth - 1), self.predicate(attributes, depth - 1))
            )
        if depth > 0 and choice < 0.3:
            return e.Not(self.predicate(attributes, depth - 1))
        return self._atom(attributes)

    def _atom(self, attributes: Sequence[p.Attribute]) -> e.Expr:
        rng = self.rng
        column = rng.choice(attributes[-3:] if rng.random() < 0.7 else attributes)
        choice = rng.random()
        if choice < 0.06:
            return e.IsNull(column.ref())
        if column.type == BOOLEAN:
            return column.ref()
        if column.type == STRING:
            return self._text_atom(column)
        if choice < 0.12:
            options = tuple(e.Literal(rng.randint(-1, 3), INTEGER) for _ in range(2))
            return e.InList(column.ref(), options)
        op = rng.choice(ORDERED if rng.random() < 0.85 else EQUALITIES)
        left = column.ref() if rng.random() < 0.75 else self.number(attributes, 1)
        right = self._literal() if rng.random() < 0.85 else self.number(attributes, 0)
        result = type_of(left)
        if result is None or not result.is_numeric:
            return e.Not(e.IsNull(left))
        return e.Compare(op, left, right) if rng.random() < 0.8 else e.Compare(op, right, left)

    def _text_atom(self, column: p.Attribute) -> e.Expr:
        if self.rng.random() < 0.3:
            return e.Like(column.ref(), self.rng.choice(("a%", "_", "%b")))
        op = self.rng.choice(ORDERED)
        return e.Compare(op, column.ref(), e.Literal(self.rng.choice(("a", "b")), STRING))


MONEY = decimal(6, 1)
CATALOG = {
    "t": schema_of("g int, p int, v int, d double, s string"),
    "u": Schema((Column("h", INTEGER), Column("q", INTEGER), Column("w", MONEY))),
}
_CALLS = (*("count", "sum") * 3, *("min", "max", "max", "avg", "bool_or", "bool_and", "count_if"))


class PlanMaker(ExprMaker, Struct, dict=True):
    """Makes random plans."""

    accesses: dict[str, int] = field(default_factory=dict)
    count: int = 0
    drawn: Sequence[str] = ("t", "t", "u")
    catalog: Mapping[str, Schema] = field(default_factory=lambda: CATALOG)

    def plan(self) -> p.Plan:
        """A plan of moderate size."""
        root = self._node(self.rng.choice((1, 2, 2, 3, 3, 4)))
        if self.rng.random() < 0.15:
            root = self._rank_filter(root)
        if self.rng.random() < 0.2:
            root = p.Sort(root, (self._sort_key(root.attributes),))
        return root

    def _fresh(self, sql_type: SqlType | None, *, nullable: bool = True) -> p.Attribute:
        self.count += 1
        return p.Attribute(f"c{self.count}", f"c{self.count}", sql_type, nullable)

    def _node(self, depth: int) -> p.Plan:
        if depth <= 0:
            return self._scan()
        makers: Sequence[tuple[int, Callable[[int], p.Plan]]] = (
            (8, self._aggregated),
            (5, self._select),
            (3, self._project),
            (4, self._join),
            (1, self._distinct),
            (2, self._set_operation),
            (4, self._top),
            (1, self._window),
            (2, lambda levels: self._rank_filter(self._node(levels - 1))),
        )
        maker = self.rng.choices([make for _, make in makers], [weight for weight, _ in makers])[0]
        return maker(depth)

    def _scan(self) -> p.Scan:
        table = self.rng.choice(self.drawn)
        self.accesses[table] = self.accesses.get(table, 0) + 1
        access = f"{table}#{self.accesses[table]}"
        attributes = tuple(
            p.Attribute(f"{access}.{column.name}", column.name, column.type)
            for column in self.catalog[table]
        )
        return p.Scan(access, table, attributes)

    def _select(self, depth: int) -> p.Plan:
        child = self._node(depth - 1)
        return p.Select(child, self.predicate(child.attributes))

    def _project(self, depth: int) -> p.Plan:
        child = self._node(depth - 1)
        attributes = child.attributes
        outputs = []
        for _ in range(self.rng.randint(1, 3)):
            expr = (
                self.rng.choice(attributes).ref()
                if self.rng.random() < 0.5
                else self.number(attributes, 2)
            )
            outputs.append(p.ComputedColumn(self._fresh(type_of(expr)), expr))
        return p.Project(child, tuple(outputs))

    def _aggregated(self, depth: int) -> p.Plan:
        child = self._node(depth - 1)
        attributes = child.attributes
        keys = [self._key(attributes) for _ in range(self.rng.choice((0, 1, 1, 1, 2)))]
        calls = [self._call(attributes) for _ in range(self.rng.choice((0, 1, 1, 2)))]
        if not keys and not calls:
            calls = [p.AggregateCall("count")]
        sets = None
        if keys and self.rng.random() < 0.08:
            whole = tuple(range(len(keys)))
            sets = (whole, self.rng.choice(((), whole[:1])))
            sets = sets if sets[0] != sets[1] else (whole,)
        plan: p.Plan = p.Aggregate(
            child,
            tuple(p.ComputedColumn(self._fresh(type_of(key)), key) for key in keys),
            tuple(p.AggregateOutput(self._fresh(result_type(call)), call) for call in calls),
            sets,
        )
        choice = self.rng.random()
        if choice < 0.55:
            plan = p.Select(plan, self.predicate(plan.attributes))
        elif choice < 0.7:
            plan = self._limited(plan)
        return plan

    def _key(self, attributes: Sequence[p.Attribute]) -> e.Expr:
        if self.rng.random() < 0.85:
            return self.rng.choice(attributes).ref()
        return self.number(attributes, 1)

    def _call(self, attributes: Sequence[p.Attribute]) -> p.AggregateCall:
        rng = self.rng
        condition = self.predicate(attributes) if rng.random() < 0.12 else None
        name = rng.choice(_CALLS)
        if name == "max" and rng.random() < 0.2:
            return other_call(rng, attributes, condition)
        if name == "count" and rng.random() < 0.5:
            return p.AggregateCall("count", (), False, condition)
        if name in ("bool_or", "bool_and", "count_if"):
            return p.AggregateCall(name, (self.predicate(attributes, 1),), False, condition)
        argument: e.Expr = rng.choice(attributes).ref()
        if name not in ("count", "min", "max"):
            argument = self.number(attributes, rng.choice((0, 0, 0, 1, 2)))
        distinct = rng.random() < 0.15 and name in ("count", "sum")
        return p.AggregateCall(name, (argument,), distinct, condition)

    def _join(self, depth: int) -> p.Plan:
        kind = self.rng.choice(
            (p.JoinKind.INNER,) * 5
            + (p.JoinKind.LEFT, p.JoinKind.RIGHT, p.JoinKind.FULL)
            + (p.JoinKind.SEMI,) * 2
            + (p.JoinKind.ANTI,)
        )
        left, right = self._node(depth - 1), self._node(self.rng.randint(0, depth - 1))
        condition = self._condition(left.attributes, right.attributes)
        null_aware = kind is p.JoinKind.ANTI and self.rng.random() < 0.3
        return p.Join(kind, left, right, condition, null_aware)

    def _condition(
        self, left: Sequence[p.Attribute], right: Sequence[p.Attribute]
    ) -> e.Expr | None:
        if self.rng.random() < 0.1:
            return None
        pairs = [(a, b) for a in left for b in right if a.type == b.type and a.type is not None]
        if pairs and self.rng.random() < 0.8:
            a, b = self.rng.choice(pairs)
            op = self.rng.choice((e.CompareOp.EQUAL,) * 5 + (*ORDERED, e.CompareOp.NULL_SAFE_EQUAL))
            equal = e.Compare(op, a.ref(), b.ref())
            if self.rng.random() < 0.25:
                return e.And((equal, self.predicate((*left, *right))))
            return equal
        return self.predicate((*left, *right))

    def _distinct(self, depth: int) -> p.Plan:
        return p.Distinct(self._node(depth - 1))

    def _set_operation(self, depth: int) -> p.Plan:
        left, right = self._node(depth - 1), self._node(self.rng.randint(0, depth - 1))
        sql_type = self.rng.choice((INTEGER, INTEGER, LONG, DOUBLE))
        width = self.rng.randint(1, 2)
        left, right = self._narrowed(left, sql_type, width), self._narrowed(right, sql_type, width)
        outputs = tuple(self._fresh(sql_type) for _ in range(width))
        kind = self.rng.choice(
            (
                p.SetKind.UNION,
                p.SetKind.UNION,
                p.SetKind.UNION,
                p.SetKind.EXCEPT,
                p.SetKind.INTERSECT,
            )
        )
        return p.SetOperation(kind, self.rng.random() < 0.6, left, right, outputs)

    def _narrowed(self, plan: p.Plan, sql_type: SqlType, width: int) -> p.Plan:
        """The plan with `width` columns of one type, by plain columns if possible."""
        same = [a.ref() for a in plan.attributes if a.type == sql_type]
        outputs = []
        for _ in range(width):
            expr: e.Expr
            if same:
                expr = self.rng.choice(same)
            else:
                expr = self.number(plan.attributes, 0)
                expr = expr if type_of(expr) == sql_type else e.Cast(expr, sql_type)
                if sql_type in (INTEGER, LONG) and type_of(expr) == DOUBLE:
                    expr = e.Literal(1, sql_type)
            outputs.append(p.ComputedColumn(self._fresh(sql_type), expr))
        return p.Project(plan, tuple(outputs))

    def _top(self, depth: int) -> p.Plan:
        return self._limited(self._node(depth - 1))

    def _limited(self, child: p.Plan) -> p.Plan:
        attributes = child.attributes
        order = [self._sort_key(attributes) for _ in range(self.rng.choice((1, 1, 2)))]
        if self.rng.random() < 0.4:
            order += [p.SortKey(a.ref(), False, self.rng.random() < 0.5) for a in attributes]
        if self.rng.random() < 0.03:
            order = []
        offset = 1 if self.rng.random() < 0.15 else 0
        return p.TopK(child, tuple(order), self.rng.choice((1, 1, 2, 3)), offset)

    def _sort_key(self, attributes: Sequence[p.Attribute]) -> p.SortKey:
        expr = (
            self.rng.choice(attributes[-2:]).ref()
            if self.rng.random() < 0.85
            else self.number(attributes, 1)
        )
        return p.SortKey(expr, self.rng.random() < 0.6, self.rng.random() < 0.4)

    def _window(self, depth: int) -> p.Plan:
        return self._windowed(self._node(depth - 1))

    def _windowed(
        self,
        child: p.Plan,
        functions: Sequence[str] = ("row_number", "rank", "dense_rank", "sum", "count"),
    ) -> p.Window:
        attributes = child.attributes
        name = self.rng.choice(functions)
        arguments = (self.number(attributes, 0),) if name in ("sum", "count") else ()
        result = result_type(p.AggregateCall(name, arguments)) if arguments else INTEGER
        partition = tuple(
            self.rng.choice(attributes).ref() for _ in range(self.rng.choice((0, 1, 1)))
        )
        order = tuple(self._sort_key(attributes) for _ in range(self.rng.choice((1, 1, 2))))
        if self.rng.random() < 0.4:
            order += tuple(p.SortKey(a.ref(), False, self.rng.random() < 0.5) for a in attributes)
        return p.Window(
            child, (p.WindowCall(self._fresh(result), name, arguments, partition, order),)
        )

    def _rank_filter(self, child: p.Plan) -> p.Plan:
        """The first ranks per partition, sometimes with another condition."""
        rng = self.rng
        below = self._windowed(child, ("row_number", "rank", "dense_rank"))
        rank = below.calls[0].attribute
        op = rng.choice((e.CompareOp.LESS_EQUAL, e.CompareOp.LESS, e.CompareOp.EQUAL))
        within = e.Compare(op, rank.ref(), e.Literal(rng.choice((1, 2, 3)), INTEGER))
        if rng.random() < 0.2:
            return p.Select(below, e.And((self.predicate(child.attributes), within)))
        return p.Select(below, within)


_INEQUALITIES = (
    e.CompareOp.LESS,
    e.CompareOp.LESS_EQUAL,
    e.CompareOp.GREATER,
    e.CompareOp.GREATER_EQUAL,
)

_COMBINING = (p.JoinKind.INNER,) * 4 + (p.JoinKind.SEMI,) * 2 + (p.JoinKind.ANTI, p.JoinKind.LEFT)


class FocusedMaker(PlanMaker):
    """Groups first, then operators on the groups."""

    def plan(self) -> p.Plan:
        rng = self.rng
        plan = self._judged(self._grouped(self._base()))
        match rng.randrange(9):
            case 0:
                plan = self._judged(self._grouped(plan))
            case 1:
                plan = p.Distinct(plan)
            case 2:
                other = (
                    self._scan()
                    if rng.random() < 0.6
                    else self._judged(self._grouped(self._base()))
                )
                kind = rng.choice(_COMBINING)
                left, right = (plan, other) if rng.random() < 0.7 else (other, plan)
                condition = self._condition(left.attributes, right.attributes)
                plan = p.Join(kind, left, right, condition)
            case 3:
                plan = self._limited(plan)
            case _:
                pass
        return plan

    def _base(self) -> p.Plan:
        rng = self.rng
        plan: p.Plan
        match rng.randrange(8):
            case 0:
                left, right = self._scan(), self._scan()
                plan = p.Join(
                    rng.choice((p.JoinKind.INNER, p.JoinKind.INNER, p.JoinKind.LEFT)),
                    left,
                    right,
                    self._condition(left.attributes, right.attributes),
                )
            case 1:
                plan = self._self_union()
            case _:
                plan = self._scan()
        if rng.random() < 0.35:
            column = self._numeric(plan.attributes)
            if column is not None:
                bound = e.Literal(rng.choice((0, 0, 0, 1, -1)), INTEGER)
                plan = p.Select(plan, e.Compare(rng.choice(_INEQUALITIES), column.ref(), bound))
        return plan

    def _self_union(self) -> p.Plan:
        """UNION ALL of the same table twice."""
        left, right = self._scan(), self._scan()
        width = min(len(left.attributes), len(right.attributes), 3)
        same = left.table == right.table
        if not same:
            return left
        outputs = tuple(self._fresh(a.type) for a in left.attributes[:width])
        return p.SetOperation(
            p.SetKind.UNION, True, self._first(left, width), self._first(right, width), outputs
        )

    def _first(self, scan: p.Scan, width: int) -> p.Plan:
        columns = scan.attributes[:width]
        return p.Project(
            scan, tuple(p.ComputedColumn(self._fresh(a.type), a.ref()) for a in columns)
        )

    def _numeric(self, attributes: Sequence[p.Attribute]) -> p.Attribute | None:
        result = [a for a in attributes if a.type is not None and a.type.is_numeric]
        return self.rng.choice(result) if result else None

    def _grouped(self, child: p.Plan) -> p.Aggregate:
        rng, attributes = self.rng, child.attributes
        keys: list[e.Expr] = [] if rng.random() < 0.08 else [attributes[0].ref()]
        if rng.random() < 0.25:
            keys.append(rng.choice(attributes).ref())
        keys = list(dict.fromkeys(keys))
        calls = [self._focused_call(attributes) for _ in range(rng.choice((1, 1, 2)))]
        sets = None
        if len(keys) == 2 and rng.random() < 0.3:
            sets = ((0, 1), rng.choice(((0,), (1,))))
        return p.Aggregate(
            child,
            tuple(p.ComputedColumn(self._fresh(type_of(key)), key) for key in keys),
            tuple(p.AggregateOutput(self._fresh(result_type(call)), call) for call in calls),
            sets,
        )

    def _focused_call(self, attributes: Sequence[p.Attribute]) -> p.AggregateCall:
        rng = self.rng
        if rng.random() < 0.25:
            return self._call(attributes)
        column = self._numeric(attributes)
        if column is None or rng.random() < 0.15:
            return p.AggregateCall("count")
        if rng.random() < 0.08:
            return other_call(rng, attributes)
        argument: e.Expr = column.ref()
        if rng.random() < 0.25:
            argument = self.number(attributes, 1)
        return p.AggregateCall(rng.choice(("sum", "min", "max", "max", "count")), (argument,))

    def _judged(self, groups: p.Plan) -> p.Plan:
        """Arithmetic on the groups' values, then a filter or top-k on the result."""
        rng = self.rng
        plan = groups
        if rng.random() < 0.45:
            plan = self._computed(plan)
        attributes = plan.attributes
        last = attributes[-1] if rng.random() < 0.8 else rng.choice(attributes)
        if rng.random() < 0.35:
            return self._ranked(plan, last)
        if last.type == BOOLEAN:
            condition: e.Expr = last.ref()
            return p.Select(plan, condition if rng.random() < 0.6 else e.Not(condition))
        if last.type == STRING or last.type is None:
            return p.Select(plan, self.predicate(attributes))
        bound: e.Expr = e.Literal(rng.choice((-3, -2, -1, 0, 0, 1, 2, 3, 4)), INTEGER)
        op = rng.choice(_INEQUALITIES)
        if rng.random() < 0.06:
            return p.Select(plan, e.Not(e.IsNull(last.ref())))
        if rng.random() < 0.08:
            return p.Select(plan, self.predicate(attributes))
        if rng.random() < 0.1:
            bound = rng.choice(attributes).ref()
            if type_of(bound) not in (INTEGER, LONG, DOUBLE):
                bound = e.Literal(1, INTEGER)
        left, right = (last.ref(), bound) if rng.random() < 0.7 else (bound, last.ref())
        return p.Select(plan, e.Compare(op, left, right))

    def _computed(self, plan: p.Plan) -> p.Plan:
        attributes = plan.attributes
        outputs = [p.ComputedColumn(self._fresh(a.type), a.ref()) for a in attributes[:-1]]
        expr = self._steps(attributes)
        outputs.append(p.ComputedColumn(self._fresh(type_of(expr)), expr))
        return p.Project(plan, tuple(outputs))

    def _steps(self, attributes: Sequence[p.Attribute]) -> e.Expr:
        rng, last = self.rng, attributes[-1]
        expr: e.Expr = last.ref()
        if last.type is None or not last.type.is_numeric:
            return expr
        for _ in range(rng.choice((1, 1, 2))):
            other = self._numeric(attributes)
            operand = other.ref() if other is not None else e.Literal(1, INTEGER)
            match rng.randrange(8):
                case 0:
                    expr = e.Negate(expr)
                case 1:
                    expr = e.Arithmetic(e.ArithmeticOp.ADD, expr, operand)
                case 2:
                    expr = e.Arithmetic(e.ArithmeticOp.SUBTRACT, operand, expr)
                case 3:
                    factor = e.Literal(rng.choice((-1, 0, 2)), INTEGER)
                    expr = e.Arithmetic(e.ArithmeticOp.MULTIPLY, expr, factor)
                case 4:
                    expr = e.Coalesce((expr, e.Literal(rng.choice((-2, 0, 0, 2)), INTEGER)))
                case 5:
                    expr = e.Cast(expr, DOUBLE)
                case 6:
                    expr = e.Call("abs", (expr,), type_of(expr))
                case _:
                    condition = e.Compare(e.CompareOp.GREATER, expr, e.Literal(0, INTEGER))
                    expr = e.Case(((condition, expr),), e.Literal(0, INTEGER))
        return expr

    def _ranked(self, plan: p.Plan, by: p.Attribute) -> p.Plan:
        rng = self.rng
        order = [p.SortKey(by.ref(), rng.random() < 0.5, rng.random() < 0.5)]
        if rng.random() < 0.6:
            order += [p.SortKey(a.ref(), False, True) for a in plan.attributes[:1]]
        if rng.random() < 0.25:
            return self._rank_filter(plan)
        return p.TopK(plan, tuple(order), rng.choice((1, 1, 2)), int(rng.random() < 0.15))


_BOUNDS = (e.CompareOp.LESS, e.CompareOp.LESS_EQUAL, e.CompareOp.GREATER, e.CompareOp.EQUAL)


class BarrierMaker(FocusedMaker):
    """Groups, the first ones by their sum, and an operator that drops some of these."""

    def plan(self) -> p.Plan:
        """A plan in which a top-k or a rank is not the last step."""
        plan = self._above(self._first_groups())
        return self._above(plan) if self.rng.random() < 0.2 else plan

    def _first_groups(self) -> p.Plan:
        rng, scan = self.rng, self._scan()
        key = scan.attributes[0]
        summed = self._numeric(scan.attributes[1:]) or key
        call = p.AggregateCall(rng.choice(("sum", "sum", "sum", "max", "count")), (summed.ref(),))
        keys = (p.ComputedColumn(self._fresh(key.type), key.ref()),)
        calls = (p.AggregateOutput(self._fresh(result_type(call)), call),)
        groups = p.Aggregate(scan, keys, calls)
        descending = rng.random() < 0.85
        order = (
            p.SortKey(calls[0].attribute.ref(), descending, rng.random() < 0.1),
            p.SortKey(keys[0].attribute.ref(), rng.random() < 0.5, rng.random() < 0.5),
        )
        count = rng.choice((1, 1, 2))
        if rng.random() < 0.7:
            return p.TopK(groups, order, count, int(rng.random() < 0.1))
        function = rng.choice(("rank", "dense_rank", "row_number"))
        ranked = p.WindowCall(self._fresh(INTEGER), function, (), (), order)
        within = e.Compare(
            e.CompareOp.LESS_EQUAL, ranked.attribute.ref(), e.Literal(count, INTEGER)
        )
        return p.Select(p.Window(groups, (ranked,)), within)

    def _above(self, first: p.Plan) -> p.Plan:
        rng, attributes = self.rng, first.attributes
        match rng.randrange(5):
            case 0 | 1:
                other = self._scan()
                kind = rng.choice((p.JoinKind.INNER, p.JoinKind.INNER, p.JoinKind.SEMI))
                sides = (other, first) if rng.random() < 0.5 else (first, other)
                pairs = [side.attributes[0].ref() for side in sides]
                return p.Join(kind, *sides, e.Compare(e.CompareOp.EQUAL, *pairs))
            case 2 | 3:
                column = self._numeric(attributes[1:]) or attributes[0]
                bound = e.Literal(rng.choice((0, 1, 2, 3, 4)), INTEGER)
                return p.Select(first, e.Compare(rng.choice(_BOUNDS), column.ref(), bound))
            case _:
                key = rng.choice(attributes)
                counted = p.AggregateOutput(self._fresh(LONG), p.AggregateCall("count"))
                keys = (p.ComputedColumn(self._fresh(key.type), key.ref()),)
                few = e.Compare(e.CompareOp.LESS, keys[0].attribute.ref(), e.Literal(3, INTEGER))
                groups = p.Aggregate(first, keys, (counted,))
                return p.Select(groups, few) if key.type in (INTEGER, LONG) else groups


_SMALL = decimal(4, 1)
_FULL = decimal(38, 2)
BIG_TABLE = Schema(
    (Column("g", INTEGER), Column("p", INTEGER), Column("b", LONG), Column("m", _FULL))
)
BIG_VALUES = {
    LONG: (-(2**62), -1, 0, 1, 2**62, 2**62 - 1, 2**40, 7),
    _FULL: tuple(Decimal(x) for x in ("-9e35", "0.00", "0.25", "9e35", "5e35", "3.00")),
    INTEGER: (-(2**31), -2, 0, 1, 2, 2**31 - 1),
}
_DIVISIONS = (e.ArithmeticOp.DIVIDE, e.ArithmeticOp.DIVIDE, e.ArithmeticOp.INTEGER_DIVIDE,
              e.ArithmeticOp.REMAINDER)  # fmt: skip
_NULL = None


class FailingMaker(FocusedMaker):
    """Groups, then steps that may fail over part of a group, then a filter or the first groups."""

    def plan(self) -> p.Plan:
        return super().plan() if self.rng.random() < 0.2 else self._first_of_groups()

    def _first_of_groups(self) -> p.Plan:
        """`SELECT g, <step> FROM t GROUP BY g ORDER BY COUNT(*) DESC, g LIMIT k`, or the like."""
        rng, scan = self.rng, self._scan()
        key = scan.attributes[0]
        calls = [p.AggregateCall("count")]
        for _ in range(2):
            summed = self._numeric(scan.attributes[2:]) or key
            name = rng.choice(("sum", "sum", "sum", "sum", "avg", "count", "max"))
            calls.append(p.AggregateCall(name, (summed.ref(),)))
        outputs_of_calls = tuple(
            p.AggregateOutput(self._fresh(result_type(call)), call) for call in calls
        )
        groups = p.Aggregate(
            scan, (p.ComputedColumn(self._fresh(key.type), key.ref()),), outputs_of_calls
        )
        attributes = groups.attributes
        expr = self._steps(attributes[:1] + attributes[1:])
        outputs = [p.ComputedColumn(self._fresh(a.type), a.ref()) for a in attributes]
        outputs.append(p.ComputedColumn(self._fresh(type_of(expr)), expr))
        steps = p.Project(groups, tuple(outputs))
        first, counted = outputs[0].attribute, outputs[1].attribute
        order = (p.SortKey(counted.ref(), True, False), p.SortKey(first.ref(), False, True))
        return p.TopK(steps, order, rng.choice((1, 1, 2)))

    def _steps(self, attributes: Sequence[p.Attribute]) -> e.Expr:
        rng = self.rng
        if rng.random() < 0.2:
            return super()._steps(attributes)
        expr: e.Expr = attributes[-1].ref()
        if not _is_number(expr):
            return expr
        for _ in range(rng.choice((1, 1, 2))):
            step = self._step(expr, self._numeric(attributes))
            expr = step if _is_number(step) else expr
        return expr

    def _step(self, expr: e.Expr, other: p.Attribute | None) -> e.Expr:
        rng = self.rng
        operand: e.Expr = e.Literal(rng.choice((2, 3, -1, 0)), INTEGER)
        if other is not None and rng.random() < 0.8:
            operand = other.ref()
        match rng.randrange(7):
            case 0 | 1 | 2:
                op = rng.choice(_DIVISIONS)
                if op is e.ArithmeticOp.INTEGER_DIVIDE and not _are_integral(expr, operand):
                    op = e.ArithmeticOp.DIVIDE
                return self._guarded(op, expr, operand)
            case 3:
                return e.Cast(expr, rng.choice((INTEGER, BYTE, _SMALL, DOUBLE)))
            case 4:
                op = rng.choice((e.ArithmeticOp.ADD, e.ArithmeticOp.SUBTRACT))
                return e.Arithmetic(op, expr, operand)
            case 5:
                return e.Arithmetic(e.ArithmeticOp.MULTIPLY, expr, operand)
            case _:
                return e.Arithmetic(e.ArithmeticOp.MULTIPLY, expr, e.Literal(1000, INTEGER))

    def _guarded(self, op: e.ArithmeticOp, expr: e.Expr, divisor: e.Expr) -> e.Expr:
        """The division, mostly plain, sometimes with a guard for zero, which may be wrong."""
        rng = self.rng
        zero = e.Literal(0, INTEGER)
        null = e.Literal(_NULL, type_of(divisor) or INTEGER)
        plain = e.Arithmetic(op, expr, divisor)
        match rng.randrange(10):
            case 0:
                tested = e.Compare(e.CompareOp.EQUAL, divisor, zero)
                return e.Arithmetic(op, expr, e.Case(((tested, null),), divisor))
            case 1:
                chosen = rng.choice((e.CompareOp.GREATER, e.CompareOp.LESS, e.CompareOp.NOT_EQUAL))
                return e.Case(((e.Compare(chosen, divisor, zero), plain),), expr)
            case 2:
                return e.Case(((e.Compare(e.CompareOp.EQUAL, divisor, zero), expr),), plain)
            case 3:
                tested = e.Not(e.Compare(e.CompareOp.EQUAL, divisor, zero))
                return e.Case(((tested, plain),), expr)
            case 4:
                # A wrong guard.
                wrong = rng.choice((e.CompareOp.GREATER_EQUAL, e.CompareOp.EQUAL))
                return e.Case(((e.Compare(wrong, divisor, zero), plain),), expr)
            case 5:
                tested = e.Compare(e.CompareOp.EQUAL, divisor, e.Literal(1, INTEGER))
                return e.Arithmetic(op, expr, e.Case(((tested, null),), divisor))
            case _:
                return plain


def _is_number(expr: e.Expr) -> bool:
    kind = type_of(expr)
    return kind is not None and kind.is_numeric


def _are_integral(*exprs: e.Expr) -> bool:
    return all((kind := type_of(expr)) is not None and kind.is_integral for expr in exprs)


def big_rows(rng: Random) -> list[dict[str, object]]:
    """Rows of few groups with numbers near the limits of their types."""
    signs = {column.name: rng.choice((-1, 0, 0, 1)) for column in BIG_TABLE}
    rows = []
    for _ in range(rng.randint(4, 10)):
        row: dict[str, object] = {}
        for column in BIG_TABLE:
            values = [v for v in BIG_VALUES[column.type] if v * signs[column.name] >= 0]
            row[column.name] = None if rng.random() < 0.1 else rng.choice(values)
        rows.append({**row, "g": rng.choice((0, 0, 1, 2)), "p": rng.choice((0, 1, 2, 3))})
    return rows


WIDE, LONG_SCALED = decimal(38, 18), decimal(20, 4)
LARGE = Decimal("12345678901234567890.123456789012345678")
"""More digits than the 34 that Spark's negation once kept."""

WIDE_VALUES = {
    WIDE: (
        LARGE,
        -LARGE,
        Decimal("12345678901234567890.123456789012345679"),
        Decimal(0),
        Decimal("1e-18"),
        Decimal("-0.5"),
    ),
    LONG_SCALED: tuple(Decimal(x) for x in ("1234567890123456.7891", "-0.0001", "0", "3")),
}
"""Few values, some of which differ only in the last digit."""

WIDE_TABLE = schema_of("k int, a decimal(38,18), z decimal(20,4), c double, y tinyint")


class _Wide(ExprMaker):
    """Constants and operators for decimals with many digits."""

    def _literal(self) -> e.Literal:
        rng = self.rng
        choice = rng.random()
        if choice < 0.15:
            return e.Literal(rng.choice((-3, -1, 1, 2, 3)), BYTE)
        if choice < 0.25:
            return e.Literal(rng.choice((LARGE, -LARGE, Decimal("0.000000000000000001"))), WIDE)
        return super()._literal()

    def _number(
        self, numeric: Sequence[p.Attribute], attributes: Sequence[p.Attribute], depth: int
    ) -> e.Expr:
        if depth <= 0 or self.rng.random() > 0.15:
            return super()._number(numeric, attributes, depth)
        inner = super()._number(numeric, attributes, depth - 1)
        result = type_of(inner)
        if result is None or not result.is_numeric or result.is_fractional:
            return inner
        divisor = self.rng.choice(
            (e.Literal(3, BYTE), e.Literal(-2, INTEGER), e.Literal(LARGE, WIDE))
        )
        op = self.rng.choice((e.ArithmeticOp.INTEGER_DIVIDE, e.ArithmeticOp.DIVIDE))
        return e.Arithmetic(op, inner, divisor)


class WidePlans(_Wide, PlanMaker):
    """`PlanMaker` with wide decimals."""


class WideGroups(_Wide, FocusedMaker):
    """`FocusedMaker` with wide decimals."""


class WideBarriers(_Wide, BarrierMaker):
    """`BarrierMaker` with wide decimals."""


MAKERS = (WidePlans, WideGroups, WideGroups, WideBarriers)


def wide_plan(rng: Random) -> p.Plan:
    """A plan by one of the makers, over all three tables."""
    catalog = {**CATALOG, "w": WIDE_TABLE}
    return rng.choice(MAKERS)(rng, drawn=("t", "u", "w", "w"), catalog=catalog).plan()

"""Scalar expressions of the SQL text, as `expr` nodes with their places.

Law: the nodes mean exactly what Spark makes of the text, or the text is refused. Mixed types are
kept as written (Spark casts them, the engine refuses them), but for two kinds in comparisons, which
become what Spark computes: a constant beside a day or a time (`plan.sql.moments`), and decimals
without a type in common, which are rounded. Where sqlglot and Spark bind operators differently,
parentheses are asked for.
Out of scope: names (`plan.sql.scope`), function calls (`plan.sql.call`), constants
(`plan.sql.literal`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Protocol

from sqlglot import exp

from impctl.data.schema import (
    BOOLEAN,
    DATE,
    INTEGER,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Kind,
    SqlType,
)
from impctl.expr.nodes import (
    And,
    Arithmetic,
    ArithmeticOp,
    Call,
    Case,
    Cast,
    Compare,
    CompareOp,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Span,
)
from impctl.expr.types import narrowed, rounded_type, type_of, uncounted
from impctl.plan.sql import call as parse_call
from impctl.plan.sql import literal as parse_literal
from impctl.plan.sql import moments
from impctl.plan.sql.context import Reading
from impctl.plan.sql.scope import Names
from impctl.plan.sql.text import SqlText
from impctl.values import dataclass

_ARITHMETIC: dict[type[exp.Expression], ArithmeticOp] = {
    exp.Add: ArithmeticOp.ADD,
    exp.Sub: ArithmeticOp.SUBTRACT,
    exp.Mul: ArithmeticOp.MULTIPLY,
    exp.Div: ArithmeticOp.DIVIDE,
    exp.IntDiv: ArithmeticOp.INTEGER_DIVIDE,
    exp.Mod: ArithmeticOp.REMAINDER,
}
COMPARISONS: dict[type[exp.Expression], CompareOp] = {
    exp.EQ: CompareOp.EQUAL,
    exp.NEQ: CompareOp.NOT_EQUAL,
    exp.LT: CompareOp.LESS,
    exp.LTE: CompareOp.LESS_EQUAL,
    exp.GT: CompareOp.GREATER,
    exp.GTE: CompareOp.GREATER_EQUAL,
    exp.NullSafeEQ: CompareOp.NULL_SAFE_EQUAL,
    exp.NullSafeNEQ: CompareOp.NULL_SAFE_EQUAL,
}
_FUNCTION_OPERATORS: dict[type[exp.Expression], str] = {
    exp.DPipe: "concat",
    exp.BitwiseLeftShift: "shiftleft",
    exp.BitwiseRightShift: "shiftright",
    exp.ILike: "ilike",
    exp.RegexpLike: "rlike",
}
_WHOLE_DAYS = (INTEGER, SqlType(Kind.SHORT), SqlType(Kind.BYTE))
_PREDICATES = (exp.Predicate, exp.Not, exp.Connector, exp.Is, exp.In, exp.Between)
_SUBQUERIES = (exp.Subquery, exp.Select, exp.SetOperation, exp.Exists)


class Special(Protocol):
    """What a clause does with aggregate and window functions; None leaves the node alone."""

    def __call__(self, reader: ExprReader, node: exp.Expression) -> Expr | None: ...


@dataclass(frozen=True, slots=True)
class ExprReader:
    """Reads expressions of one clause; `clause` names it in messages."""

    reading: Reading
    names: Names
    clause: str
    special: Special | None = None
    in_aggregate: bool = False
    beside: Mapping[int, Expr] = field(default_factory=dict)
    """What subqueries stand for that are joined beside the rows, by the `id` of their nodes."""

    @property
    def text(self) -> SqlText:
        return self.reading.text

    def read(self, node: exp.Expression) -> Expr:
        """The expression a tree stands for."""
        if id(node) in self.beside:
            return self.beside[id(node)]
        if self.special is not None:
            result = self.special(self, node)
            if result is not None:
                return result
        span = self.text.span_of(node)
        kind = type(node)
        if kind in _ARITHMETIC:
            return self._arithmetic(node, span)
        if kind in COMPARISONS:
            return self._comparison(node, span)
        if kind in _FUNCTION_OPERATORS:
            return self._operator(node, span)
        result = self._constant(node, span)
        if result is None:
            result = self._predicate(node, span)
        if result is None:
            result = parse_call.read_call(self, node, span)
        return result if result is not None else self._other(node, span)

    def read_all(self, nodes: Sequence[exp.Expression]) -> tuple[Expr, ...]:
        """Several expressions in order."""
        return tuple(self.read(node) for node in nodes)

    def _constant(self, node: exp.Expression, span: Span | None) -> Expr | None:
        match node:
            case exp.Literal() | exp.RawString():
                result = parse_literal.number(self.text, node)
                if result is not None:
                    return result
                return parse_literal.constant(parse_literal.string_value(self.text, node), span)
            case exp.Boolean():
                return parse_literal.constant(bool(node.this), span)
            case exp.Null():
                return parse_literal.constant(None, span)
            case exp.HexString():
                digits = str(node.this)
                return parse_literal.constant(bytes.fromhex("0" * (len(digits) % 2) + digits), span)
            case exp.Interval():
                return moments.interval(self.text, node, span)
            case exp.Neg():
                return self._negative(node, span)
        return None

    def _negative(self, node: exp.Neg, span: Span | None) -> Expr:
        inner = node.this
        result = parse_literal.number(self.text, inner, negative=True)
        if result is not None:
            return result
        if isinstance(inner, exp.Cast) and isinstance(inner.this, exp.Literal):
            raise self._parentheses(node)
        return Negate(self.read(inner), span=span)

    def _arithmetic(self, node: exp.Expression, span: Span | None) -> Expr:
        left, right = self.read(node.this), self.read(node.expression)
        moved = self._moved_date(node, left, span) or self._moved_column(node, left, right, span)
        return moved or Arithmetic(_ARITHMETIC[type(node)], left, right, span=span)

    def _moved_date(self, node: exp.Expression, left: Expr, span: Span | None) -> Expr | None:
        """A constant day or time plus or minus INTERVAL, computed."""
        step = node.expression
        if not (isinstance(step, exp.Interval) and isinstance(left, Literal)):
            return None
        if not isinstance(node, exp.Add | exp.Sub):
            return None
        amount, unit = moments.interval_parts(self.text, step)
        sign = 1 if isinstance(node, exp.Add) else -1
        return moments.shifted(left, sign * amount, unit, self.reading.zone, span)

    def _moved_column(
        self, node: exp.Expression, left: Expr, right: Expr, span: Span | None
    ) -> Expr | None:
        """A DATE plus or minus days, or a timestamp plus or minus an INTERVAL of units of a fixed
        length, by the functions that Spark has for them."""
        kind, step = type_of(left), node.expression
        if not isinstance(node, exp.Add | exp.Sub) or kind not in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
            return None
        is_sum = isinstance(node, exp.Add)
        if kind != DATE:
            return self._later(left, step, span, is_sum=is_sum)
        if isinstance(step, exp.Interval):
            days = moments.days_of(*moments.interval_parts(self.text, step))
            right = right if days is None else Literal(days, INTEGER, span=right.span)
        if type_of(right) not in _WHOLE_DAYS:
            return None
        return Call("date_add" if is_sum else "date_sub", (left, right), DATE, span=span)

    def _later(
        self, left: Expr, step: exp.Expression, span: Span | None, *, is_sum: bool
    ) -> Expr | None:
        if not isinstance(step, exp.Interval):
            return None
        amount, unit = moments.interval_parts(self.text, step)
        if not moments.is_fixed(unit, amount):
            return None
        parts = (
            parse_literal.constant(unit.upper(), span),
            Literal(amount if is_sum else -amount, INTEGER, span=span),
            left,
        )
        return Call("timestampadd", parts, type_of(left), self.reading.zone, span=span)

    def _comparison(self, node: exp.Expression, span: Span | None) -> Expr:
        for side in (node.this, node.expression):
            if isinstance(side, _PREDICATES):
                raise self._parentheses(node)
            if isinstance(side, _SUBQUERIES) and id(side) not in self.beside:
                raise self._subquery(side)
        left, right = self.read(node.this), self.read(node.expression)
        return self.compare(node, left, right, span)

    def compare(self, node: exp.Expression, left: Expr, right: Expr, span: Span | None) -> Expr:
        """A comparison of two read sides, dates brought to dates."""
        left, right = self.alike(left, right)
        result = Compare(COMPARISONS[type(node)], left, right, span=span)
        return Not(result, span=span) if isinstance(node, exp.NullSafeNEQ) else result

    def alike(self, left: Expr, right: Expr) -> tuple[Expr, Expr]:
        """Two sides of a comparison, as Spark compares them.

        Rounding of decimals without a type in common then stands in the plan, as casts.
        """
        zone = self.reading.zone
        left, right = moments.alike(left, right, zone), moments.alike(right, left, zone)
        own, other = type_of(left), type_of(right)
        if own is None or other is None:
            return left, right
        common = rounded_type(narrowed(left, own, other), narrowed(right, other, own))
        if common is None:
            return left, right
        return _rounded(left, own, common), _rounded(right, other, common)

    def _operator(self, node: exp.Expression, span: Span | None) -> Expr:
        for side in (node.this, node.expression):
            if isinstance(side, exp.Binary) and not isinstance(side, type(node)):
                raise self._parentheses(node)
        if isinstance(node, exp.ILike) and isinstance(node.expression, exp.Any | exp.All):
            raise self.text.unsupported("ILIKE ANY or ALL", node)
        name = _FUNCTION_OPERATORS[type(node)]
        parts = self.read_all((node.this, node.expression))
        kind = BOOLEAN if name in ("ilike", "rlike") else None
        if name == "concat" and all(type_of(part) == STRING for part in parts):
            kind = STRING
        result = Call(name, parts, kind, span=span)
        # sqlglot says NOT ILIKE on the node itself.
        return Not(result, span=span) if node.args.get("negate") else result

    def _predicate(self, node: exp.Expression, span: Span | None) -> Expr | None:
        match node:
            case exp.Paren():
                return self.read(node.this)
            case exp.And():
                return And(self.read_all(_flat(node, exp.And)), span=span)
            case exp.Or():
                return Or(self.read_all(_flat(node, exp.Or)), span=span)
            case exp.Not():
                return self._negated(node, span)
            case exp.Is():
                return self._is(node, span)
            case exp.Between():
                return self._between(node, span)
            case exp.In():
                return self._in_list(node, span)
            case exp.Like() | exp.Escape():
                return self._like(node, span)
            case exp.Case() | exp.If():
                return self._case(node, span)
        return None

    def _negated(self, node: exp.Not, span: Span | None) -> Expr:
        inner = self.read(node.this)
        if isinstance(inner, IsNull | InList | Like):
            return Not(replace(inner, span=span), span=span)
        return Not(inner, span=span)

    def _is(self, node: exp.Is, span: Span | None) -> Expr:
        if isinstance(node.this, _PREDICATES) or node.args.get("negate"):
            raise self._parentheses(node)
        operand = self.read(node.this)
        match node.expression:
            case exp.Null():
                return IsNull(operand, span=span)
            case exp.Boolean() as wanted:
                truth = parse_literal.constant(bool(wanted.this), span)
                return Compare(CompareOp.NULL_SAFE_EQUAL, operand, truth, span=span)
        raise self.text.unsupported("IS in this form", node)

    def _between(self, node: exp.Between, span: Span | None) -> Expr:
        if node.args.get("symmetric") is not None:
            raise self.text.unsupported("BETWEEN SYMMETRIC", node, hint="write two comparisons")
        if any(
            isinstance(part, _PREDICATES)
            for part in (node.this, node.args["low"], node.args["high"])
        ):
            raise self._parentheses(node)
        low, high = self.read(node.args["low"]), self.read(node.args["high"])
        operand = uncounted(self.read(node.this), low, high)
        above = Compare(CompareOp.GREATER_EQUAL, *self.alike(operand, low), span=span)
        below = Compare(CompareOp.LESS_EQUAL, *self.alike(operand, high), span=span)
        return And((above, below), span=span)

    def _in_list(self, node: exp.In, span: Span | None) -> Expr:
        if node.args.get("query") is not None:
            raise self._subquery(node)
        if node.args.get("unnest") is not None or node.args.get("field") is not None:
            raise self.text.unsupported(
                "IN in this form", node, hint="list the values in parentheses"
            )
        if isinstance(node.this, exp.Tuple):
            raise self.text.unsupported(
                "IN over several columns", node, hint="write it with AND and OR"
            )
        if not node.expressions:
            raise self.text.error("IN needs at least one value", node, hint="list the values")
        operand = self.read(node.this)
        options = self.read_all(node.expressions)
        brought = tuple(moments.alike(option, operand, self.reading.zone) for option in options)
        if all(type_of(option) == type_of(operand) for option in brought):
            options = brought
        return InList(operand, options, span=span)

    def _like(self, node: exp.Expression, span: Span | None) -> Expr:
        escape = "\\"
        like = node
        if isinstance(node, exp.Escape):
            like = node.this
            escape = parse_literal.string_value(self.text, node.expression)
        if not isinstance(like, exp.Like) or isinstance(like.expression, exp.Any | exp.All):
            raise self.text.unsupported("LIKE ANY, LIKE ALL or ILIKE with ESCAPE", node)
        negated = bool(like.args.get("negate"))
        operand, pattern = self.read(like.this), self.read(like.expression)
        if isinstance(pattern, Literal) and isinstance(pattern.value, str):
            expr: Expr = Like(operand, pattern.value, escape, span=span)
        elif like is node:
            expr = Call("like", (operand, pattern), BOOLEAN, span=span)
        else:
            expr = Call(
                "like", (operand, pattern, parse_literal.constant(escape, span)), BOOLEAN, span=span
            )
        return Not(expr, span=span) if negated else expr

    def _case(self, node: exp.Expression, span: Span | None) -> Expr:
        default = node.args.get("default" if isinstance(node, exp.Case) else "false")
        otherwise = (
            self.read(default) if default is not None else parse_literal.constant(None, span)
        )
        if isinstance(node, exp.If):
            if default is None:
                raise self.text.unsupported("`if` with 2 arguments", node)
            return Case(
                ((self.read(node.this), self.read(node.args["true"])),), otherwise, span=span
            )
        subject = None if node.this is None else self.read(node.this)
        branches = []
        for branch in node.args["ifs"]:
            condition = self.read(branch.this)
            if subject is not None:
                equal = Compare(CompareOp.EQUAL, *self.alike(subject, condition))
                condition = replace(equal, span=self.text.span_of(branch.this))
            branches.append((condition, self.read(branch.args["true"])))
        return Case(tuple(branches), otherwise, span=span)

    def _other(self, node: exp.Expression, span: Span | None) -> Expr:
        match node:
            case exp.Column() if not isinstance(node.this, exp.Star):
                return self.names.column(node, in_aggregate=self.in_aggregate)
            case exp.BitwiseAnd() | exp.BitwiseOr() | exp.BitwiseXor() | exp.BitwiseNot():
                raise self.text.unsupported("a bitwise operator", node)
            case exp.Placeholder() | exp.Parameter() | exp.SessionParameter():
                raise self.text.unsupported(
                    f"the parameter `{node.name}`" if node.name.isalnum() else "a parameter",
                    self.text.place_of("?") or self.text.place_of(":"),
                    hint="write the value into the query",
                )
            case exp.Dot() | exp.Bracket():
                raise self.text.unsupported(
                    "a nested field or array element",
                    node,
                    hint="impctl reads top-level columns only; store the value in its own column",
                )
        if isinstance(node, _SUBQUERIES):
            raise self._subquery(node)
        raise self.text.unsupported(f"{construct_name(node)} in {self.clause}", node)

    def _subquery(self, node: exp.Expression) -> Exception:
        what = "IN or EXISTS" if isinstance(node, exp.In | exp.Exists) else "a scalar subquery"
        if what == "a scalar subquery":
            return self.text.unsupported(
                f"{what} in {self.clause}", node, hint="join the subquery in FROM instead"
            )
        return self.text.unsupported(
            f"{what} with a subquery inside another expression in {self.clause}",
            node,
            hint=(
                "write it as a separate condition in WHERE or HAVING, combined with the others by "
                "AND"
            ),
        )

    def _parentheses(self, node: exp.Expression) -> Exception:
        return self.text.unsupported(
            "operators whose precedence differs between SQL parsers",
            node,
            hint="put parentheses around the part to evaluate first",
        )


def construct_name(node: exp.Expression) -> str:
    """A readable name of a construct that is refused."""
    if isinstance(node, exp.Window):
        return "a window function"
    if isinstance(node, exp.Lambda | exp.Transform):
        return "a lambda function"
    return f"`{node.key.upper().replace('_', ' ')}`"


def _flat(node: exp.Expression, kind: type[exp.Expression]) -> list[exp.Expression]:
    """The operands of nested AND or OR, in order; deep chains are walked, not recursed."""
    pending, result = [node], []
    while pending:
        current = pending.pop()
        if isinstance(current, kind):
            pending += [current.expression, current.this]
        else:
            result.append(current)
    return result


def _rounded(expr: Expr, own: SqlType, wanted: SqlType) -> Expr:
    return expr if own == wanted else Cast(expr, wanted, span=expr.span)

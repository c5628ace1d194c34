"""Scalar expressions, function calls and casts of the SQL text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace
from sqlglot import exp

from impctl.data.schema import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Kind,
    SqlType,
    decimal,
    from_delta,
)
from impctl.expr import nodes as e
from impctl.expr.functions import number_type
from impctl.expr.types import narrowed, rounded_type, type_of, uncounted
from impctl.plan.functions import AGGREGATES, FOREIGN, GENERATORS, SCALARS, VOLATILE, WINDOW_ONLY
from impctl.sql import literals
from impctl.sql.scope import Names, ParseContext, did_you_mean
from impctl.sql.text import Node, SqlText

# Scalar expressions as `expr` nodes with the meaning that Spark gives the text, or a refusal. Mixed
# types stay as written (Spark casts them, the engine refuses them), except in comparisons with a
# constant beside a date or time (`sql.literals`) and of decimals without a common type. Parentheses
# are required where sqlglot and Spark bind operators differently.

_ARITHMETIC: dict[type[Node], e.ArithmeticOp] = {
    exp.Add: e.ArithmeticOp.ADD,
    exp.Sub: e.ArithmeticOp.SUBTRACT,
    exp.Mul: e.ArithmeticOp.MULTIPLY,
    exp.Div: e.ArithmeticOp.DIVIDE,
    exp.IntDiv: e.ArithmeticOp.INTEGER_DIVIDE,
    exp.Mod: e.ArithmeticOp.REMAINDER,
}
COMPARISONS: dict[type[Node], e.CompareOp] = {
    exp.EQ: e.CompareOp.EQUAL,
    exp.NEQ: e.CompareOp.NOT_EQUAL,
    exp.LT: e.CompareOp.LESS,
    exp.LTE: e.CompareOp.LESS_EQUAL,
    exp.GT: e.CompareOp.GREATER,
    exp.GTE: e.CompareOp.GREATER_EQUAL,
    exp.NullSafeEQ: e.CompareOp.NULL_SAFE_EQUAL,
    exp.NullSafeNEQ: e.CompareOp.NULL_SAFE_EQUAL,
}
_FUNCTION_OPERATORS: dict[type[Node], str] = {
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
    """How a clause reads aggregate and window functions; None leaves the node alone."""

    def __call__(self, reader: ExprReader, node: Node) -> e.Expr | None: ...


class ExprReader(Struct, frozen=True):
    """Reads expressions of one clause; `clause` names it in messages."""

    context: ParseContext
    names: Names
    clause: str
    special: Special | None = None
    in_aggregate: bool = False
    beside: Mapping[int, e.Expr] = field(default_factory=dict)
    """Values of subqueries joined beside the rows, by the `id` of their nodes."""

    @property
    def text(self) -> SqlText:
        return self.context.text

    def read(self, node: Node) -> e.Expr:
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
            result = read_call(self, node, span)
        return result if result is not None else self._other(node, span)

    def read_all(self, nodes: Sequence[Node]) -> tuple[e.Expr, ...]:
        return tuple(self.read(node) for node in nodes)

    def _constant(self, node: Node, span: e.Span | None) -> e.Expr | None:
        match node:
            case exp.Literal() | exp.RawString():
                result = literals.number(self.text, node)
                if result is not None:
                    return result
                return literals.constant(literals.string_value(self.text, node), span)
            case exp.Boolean():
                return literals.constant(bool(node.this), span)
            case exp.Null():
                return literals.constant(None, span)
            case exp.HexString():
                digits = str(node.this)
                return literals.constant(bytes.fromhex("0" * (len(digits) % 2) + digits), span)
            case exp.Interval():
                return literals.interval(self.text, node, span)
            case exp.Neg():
                return self._negative(node, span)
        return None

    def _negative(self, node: exp.Neg, span: e.Span | None) -> e.Expr:
        inner = node.this
        result = literals.number(self.text, inner, negative=True)
        if result is not None:
            return result
        if isinstance(inner, exp.Cast) and isinstance(inner.this, exp.Literal):
            raise self._parentheses(node)
        return e.Negate(self.read(inner), span=span)

    def _arithmetic(self, node: Node, span: e.Span | None) -> e.Expr:
        left, right = self.read(node.this), self.read(node.expression)
        moved = self._moved_date(node, left, span) or self._moved_column(node, left, right, span)
        return moved or e.Arithmetic(_ARITHMETIC[type(node)], left, right, span=span)

    def _moved_date(self, node: Node, left: e.Expr, span: e.Span | None) -> e.Expr | None:
        """A constant date or time plus or minus INTERVAL, computed."""
        step = node.expression
        if not (isinstance(step, exp.Interval) and isinstance(left, e.Literal)):
            return None
        if not isinstance(node, exp.Add | exp.Sub):
            return None
        amount, unit = literals.interval_parts(self.text, step)
        sign = 1 if isinstance(node, exp.Add) else -1
        return literals.shifted(left, sign * amount, unit, self.context.zone, span)

    def _moved_column(
        self, node: Node, left: e.Expr, right: e.Expr, span: e.Span | None
    ) -> e.Expr | None:
        """DATE plus or minus days, or timestamp plus or minus an INTERVAL of fixed length, as Spark
        functions."""
        # Arithmetic gives numbers; finding the types of all parts of a long sum would be quadratic.
        if not isinstance(node, exp.Add | exp.Sub) or isinstance(left, e.Arithmetic):
            return None
        kind, step = type_of(left), node.expression
        if kind not in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
            return None
        is_sum = isinstance(node, exp.Add)
        if kind != DATE:
            return self._later(left, step, span, is_sum=is_sum)
        if isinstance(step, exp.Interval):
            days = literals.days_of(*literals.interval_parts(self.text, step))
            right = right if days is None else e.Literal(days, INTEGER, span=right.span)
        if type_of(right) not in _WHOLE_DAYS:
            return None
        return e.Call("date_add" if is_sum else "date_sub", (left, right), DATE, span=span)

    def _later(
        self, left: e.Expr, step: Node, span: e.Span | None, *, is_sum: bool
    ) -> e.Expr | None:
        if not isinstance(step, exp.Interval):
            return None
        amount, unit = literals.interval_parts(self.text, step)
        if not literals.is_fixed(unit, amount):
            return None
        parts = (
            literals.constant(unit.upper(), span),
            e.Literal(amount if is_sum else -amount, INTEGER, span=span),
            left,
        )
        return e.Call("timestampadd", parts, type_of(left), self.context.zone, span=span)

    def _comparison(self, node: Node, span: e.Span | None) -> e.Expr:
        for side in (node.this, node.expression):
            if isinstance(side, _PREDICATES):
                raise self._parentheses(node)
            if isinstance(side, _SUBQUERIES) and id(side) not in self.beside:
                raise self._subquery(side)
        left, right = self.read(node.this), self.read(node.expression)
        return self.compare(node, left, right, span)

    def compare(self, node: Node, left: e.Expr, right: e.Expr, span: e.Span | None) -> e.Expr:
        left, right = self.alike(left, right)
        result = e.Compare(COMPARISONS[type(node)], left, right, span=span)
        return e.Not(result, span=span) if isinstance(node, exp.NullSafeNEQ) else result

    def alike(self, left: e.Expr, right: e.Expr) -> tuple[e.Expr, e.Expr]:
        """Bring two sides to the types that Spark compares, rounding decimals without a common
        type."""
        zone = self.context.zone
        left, right = literals.alike(left, right, zone), literals.alike(right, left, zone)
        left_type, right_type = type_of(left), type_of(right)
        if left_type is None or right_type is None:
            return left, right
        common = rounded_type(
            narrowed(left, left_type, right_type), narrowed(right, right_type, left_type)
        )
        if common is None:
            return left, right
        return _rounded(left, left_type, common), _rounded(right, right_type, common)

    def _operator(self, node: Node, span: e.Span | None) -> e.Expr:
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
        result = e.Call(name, parts, kind, span=span)
        # sqlglot marks NOT ILIKE on the node itself.
        return e.Not(result, span=span) if node.args.get("negate") else result

    def _predicate(self, node: Node, span: e.Span | None) -> e.Expr | None:
        match node:
            case exp.Paren():
                return self.read(node.this)
            case exp.And() | exp.Or():
                operands: list[Any] = list(node.flatten(unnest=False))
                connective = e.And if isinstance(node, exp.And) else e.Or
                return connective(self.read_all(operands), span=span)
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

    def _negated(self, node: exp.Not, span: e.Span | None) -> e.Expr:
        inner = self.read(node.this)
        if isinstance(inner, e.IsNull | e.InList | e.Like):
            return e.Not(replace(inner, span=span), span=span)
        return e.Not(inner, span=span)

    def _is(self, node: exp.Is, span: e.Span | None) -> e.Expr:
        if isinstance(node.this, _PREDICATES) or node.args.get("negate"):
            raise self._parentheses(node)
        operand = self.read(node.this)
        match node.expression:
            case exp.Null():
                return e.IsNull(operand, span=span)
            case exp.Boolean() as wanted:
                truth = literals.constant(bool(wanted.this), span)
                return e.Compare(e.CompareOp.NULL_SAFE_EQUAL, operand, truth, span=span)
        raise self.text.unsupported("IS in this form", node)

    def _between(self, node: exp.Between, span: e.Span | None) -> e.Expr:
        if node.args.get("symmetric") is not None:
            raise self.text.unsupported("BETWEEN SYMMETRIC", node, hint="write two comparisons")
        if any(
            isinstance(part, _PREDICATES)
            for part in (node.this, node.args["low"], node.args["high"])
        ):
            raise self._parentheses(node)
        low, high = self.read(node.args["low"]), self.read(node.args["high"])
        operand = uncounted(self.read(node.this), low, high)
        above = e.Compare(e.CompareOp.GREATER_EQUAL, *self.alike(operand, low), span=span)
        below = e.Compare(e.CompareOp.LESS_EQUAL, *self.alike(operand, high), span=span)
        return e.And((above, below), span=span)

    def _in_list(self, node: exp.In, span: e.Span | None) -> e.Expr:
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
        brought = tuple(literals.alike(option, operand, self.context.zone) for option in options)
        if all(type_of(option) == type_of(operand) for option in brought):
            options = brought
        return e.InList(operand, options, span=span)

    def _like(self, node: Node, span: e.Span | None) -> e.Expr:
        escape, like = "\\", node
        if isinstance(node, exp.Escape):
            like = node.this
            escape = literals.string_value(self.text, node.expression)
        if not isinstance(like, exp.Like) or isinstance(like.expression, exp.Any | exp.All):
            raise self.text.unsupported("LIKE ANY, LIKE ALL or ILIKE with ESCAPE", node)
        negated = bool(like.args.get("negate"))
        operand, pattern = self.read(like.this), self.read(like.expression)
        if isinstance(pattern, e.Literal) and isinstance(pattern.value, str):
            expr: e.Expr = e.Like(operand, pattern.value, escape, span=span)
        else:
            escapes = () if like is node else (literals.constant(escape, span),)
            expr = e.Call("like", (operand, pattern, *escapes), BOOLEAN, span=span)
        return e.Not(expr, span=span) if negated else expr

    def _case(self, node: Node, span: e.Span | None) -> e.Expr:
        default = node.args.get("default" if isinstance(node, exp.Case) else "false")
        otherwise = self.read(default) if default is not None else literals.constant(None, span)
        if isinstance(node, exp.If):
            if default is None:
                raise self.text.unsupported("`if` with 2 arguments", node)
            return e.Case(
                ((self.read(node.this), self.read(node.args["true"])),), otherwise, span=span
            )
        subject = None if node.this is None else self.read(node.this)
        branches = []
        for branch in node.args["ifs"]:
            condition = self.read(branch.this)
            if subject is not None:
                equal = e.Compare(e.CompareOp.EQUAL, *self.alike(subject, condition))
                condition = replace(equal, span=self.text.span_of(branch.this))
            branches.append((condition, self.read(branch.args["true"])))
        return e.Case(tuple(branches), otherwise, span=span)

    def _other(self, node: Node, span: e.Span | None) -> e.Expr:
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

    def _subquery(self, node: Node) -> Exception:
        if isinstance(node, exp.In | exp.Exists):
            construct = "IN or EXISTS with a subquery inside another expression"
            hint = (
                "write it as a separate condition in WHERE or HAVING, combined with the others by "
                "AND"
            )
        else:
            construct, hint = "a scalar subquery", "join the subquery in FROM instead"
        return self.text.unsupported(f"{construct} in {self.clause}", node, hint=hint)

    def _parentheses(self, node: Node) -> Exception:
        return self.text.unsupported(
            "operators whose precedence differs between SQL parsers",
            node,
            hint="put parentheses around the part to evaluate first",
        )


def construct_name(node: Node) -> str:
    if isinstance(node, exp.Window):
        return "a window function"
    if isinstance(node, exp.Lambda | exp.Transform):
        return "a lambda function"
    return f"`{node.key.upper().replace('_', ' ')}`"


def _rounded(expr: e.Expr, source: SqlType, target: SqlType) -> e.Expr:
    return expr if source == target else e.Cast(expr, target, span=expr.span)


# Function calls and casts. Some become nodes (COALESCE, NULLIF, IF, MOD, casts), the others a Call
# with the arguments as written; functions unknown to Spark are refused, volatile ones noted.

_NO_PARENTHESES = {
    "CurrentDate": "current_date", "CurrentTimestamp": "current_timestamp",
    "CurrentUser": "current_user", "SessionUser": "session_user",
}  # fmt: skip
"""By class name, since older versions of sqlglot lack some classes."""
CAST_FUNCTIONS = {
    "bigint": "long", "int": "integer", "smallint": "short", "tinyint": "byte", "double": "double",
    "float": "float", "boolean": "boolean", "string": "string", "binary": "binary", "date": "date",
    "timestamp": "timestamp",
}  # fmt: skip
"""Casts written as functions, and their types."""
_INTERVALS = frozenset({"interval day", "interval month", "interval year"})
_RESULT_TYPES = (
    (
        STRING,
        "btrim chr concat_ws date_format format_number initcap lower lpad ltrim md5 regexp_extract "
        "regexp_replace repeat replace rpad rtrim sha1 substring_index translate trim upper",
    ),
    (
        INTEGER,
        "ascii char_length character_length datediff date_diff day dayofmonth dayofweek dayofyear "
        "bit_length hour instr len length locate minute month octet_length position quarter second "
        "weekday weekofyear year",
    ),
    (DATE, "add_months date_add date_sub last_day make_date next_day to_date trunc"),
    (TIMESTAMP, "date_trunc to_timestamp"),
    (
        DOUBLE,
        "acos asin atan atan2 cbrt cos degrees exp ln log log10 log1p log2 months_between pow "
        "power radians sign signum sin sqrt tan tanh",
    ),
    (BOOLEAN, "contains endswith isnan regexp_like startswith"),
)
"""Functions with one result type for all arguments; STRING only for plain text."""
_FIELDS = {
    "days": "day", "dow": "dayofweek", "doy": "dayofyear", "week": "weekofyear", "hours": "hour",
    "minutes": "minute", "months": "month", "years": "year",
}  # fmt: skip
_FIELD_FUNCTIONS = frozenset(
    {"year", "quarter", "month", "weekofyear", "day", "dayofweek", "dayofyear", "hour", "minute"}
)
_WITH_FIELDS = (DATE, TIMESTAMP, TIMESTAMP_NTZ)
_SAME_TYPE = frozenset({"abs", "negative", "nullifzero", "positive"})


def read_call(reader: ExprReader, node: Node, span: e.Span | None) -> e.Expr | None:
    """Read a call or cast; None for any other node."""
    match node:
        case exp.Cast():
            return _cast(reader, node, span)
        case exp.Anonymous():
            return _function(reader, node, span)
        case exp.Substring():
            parts = [node.this, node.args.get("start"), node.args.get("length")]
            return _call(reader, "substring", [part for part in parts if part is not None], span)
        case exp.Trim():
            return _trim(reader, node, span)
        case exp.Extract():
            name = node.this.name.lower()
            name = _FIELDS.get(name, name)
            operand = reader.read(node.expression)
            if name in _FIELD_FUNCTIONS and type_of(operand) in _WITH_FIELDS:
                return _made(reader, name, (operand,), span)
            # An interval has fields too, for which Spark has no functions.
            return e.Call("date_part", (literals.constant(name, span), operand), span=span)
        case exp.StrPosition():
            if any(node.args.get(part) for part in ("position", "occurrence")):
                hint = "use locate(part, text, start)"
                raise reader.text.unsupported("POSITION with a start", node, hint=hint)
            return _call(reader, "locate", [node.args["substr"], node.this], span)
    name = _NO_PARENTHESES.get(type(node).__name__)
    if name is None:
        return None
    span = reader.text.place_of(name) if span is None else span
    reader.context.note_volatile(name, span)
    return e.Call(name, (), span=span)


def function_name(node: Node) -> str | None:
    if isinstance(node, exp.Any) and isinstance(node.this, exp.Paren):
        # sqlglot takes `any(x)` for the quantifier.
        return "any"
    if not isinstance(node, exp.Anonymous):
        return None
    return node.name.lower()


def arguments_of(node: Node) -> list[Node]:
    return [node.this.this] if isinstance(node, exp.Any) else list(node.expressions)


def _cast(reader: ExprReader, node: exp.Cast, span: e.Span | None) -> e.Expr:
    text = reader.text
    number = literals.number(text, node)
    if number is not None:
        return number
    for option in ("format", "default"):
        if node.args.get(option) is not None:
            raise text.unsupported(f"CAST with {option.upper()}", node)
    target = _cast_type(text, node)
    if not isinstance(node, exp.TryCast):
        # Only typed literals come as a plain cast: Spark's CAST reads as exp.TryCast.
        return _typed_literal(reader, node, target, span)
    if node.args.get("safe"):
        raise text.unsupported(
            "TRY_CAST", node, hint="use CAST, which fails where TRY_CAST returns NULL"
        )
    return literals.folded(e.Cast(reader.read(node.this), target, reader.context.zone, span=span))


def _typed_literal(
    reader: ExprReader, node: exp.Cast, kind: SqlType, span: e.Span | None
) -> e.Expr:
    """`DATE '2024-01-31'`. The parser takes `DATE '2024-01-31'::STRING` for a date of a cast text;
    Spark casts the date."""
    text, zone, literal = reader.text, reader.context.zone, node.this
    casts: list[exp.Cast] = []
    while isinstance(literal, exp.Cast):
        casts.append(literal)
        literal = literal.this
    written = literals.string_value(text, literal)
    value = literals.typed(text, kind, written, node, zone, span)
    for cast in reversed(casts):
        value = literals.folded(e.Cast(value, _cast_type(text, cast), zone, span=span))
    return value


def _cast_type(text: SqlText, node: exp.Cast) -> SqlType:
    written = str(node.to.sql(dialect="spark")).lower()
    name = CAST_FUNCTIONS.get(written, written)
    if name in ("decimal", "numeric", "dec"):
        return decimal(10, 0)
    if name.startswith("decimal("):
        inside = name[len("decimal(") : -1].replace(" ", "")
        name = f"decimal({inside if ',' in inside else inside + ',0'})"
    result = from_delta(name)
    if result.kind in (Kind.OTHER, Kind.NULL) and name not in _INTERVALS:
        raise text.unsupported(f"CAST to `{written}`", node, hint="cast to a simple type")
    return result


def _trim(reader: ExprReader, node: exp.Trim, span: e.Span | None) -> e.Expr:
    position = str(node.args.get("position") or "BOTH").upper()
    name = {"BOTH": "btrim", "LEADING": "ltrim", "TRAILING": "rtrim"}[position]
    parts: tuple[e.Expr, ...] = (reader.read(node.this),)
    if node.expression is None:
        name = "trim" if name == "btrim" else name
    else:
        characters = reader.read(node.expression)
        parts = (*parts, characters) if name == "btrim" else (characters, *parts)
    return e.Call(name, parts, _result_type(name, parts), span=span)


def _function(reader: ExprReader, node: exp.Anonymous, span: e.Span | None) -> e.Expr:
    name = function_name(node) or ""
    by_unit = _function_by_unit(reader, node, name, span)
    if by_unit is not None:
        return by_unit
    _refuse_kinds(reader, node, name)
    for argument in node.expressions:
        if isinstance(argument, exp.Distinct | exp.Star | exp.Kwarg | exp.Lambda):
            kind = type(argument).__name__.lower()
            raise reader.text.unsupported(f"`{name}` with a {kind} argument", node)
    parts = reader.read_all(node.expressions)
    rewritten = _rewritten(name, parts, reader.context.zone, span)
    if rewritten is not None:
        return rewritten
    if name in VOLATILE and not (name == "unix_timestamp" and parts):
        reader.context.note_volatile(name, span)
    return _made(reader, name, parts, span)


_UNIT_SUMS = frozenset({"timestampadd", "dateadd", "date_add"})
_UNIT_DIFFERENCES = frozenset({"timestampdiff", "datediff", "date_diff", "timediff"})
_UNITS = frozenset(
    (
        *("year", "quarter", "month", "week", "day", "dayofyear"),
        *("hour", "minute", "second", "millisecond", "microsecond"),
    )
)


def _function_by_unit(
    reader: ExprReader, node: exp.Anonymous, name: str, span: e.Span | None
) -> e.Expr | None:
    """`timestampadd(HOUR, 3, at)` and `datediff(HOUR, since, until)`, whose first argument is a
    bare word; else None."""
    if name not in _UNIT_SUMS | _UNIT_DIFFERENCES or len(node.expressions) != 3:
        return None
    unit, *rest = node.expressions
    if not isinstance(unit, exp.Column) or unit.name.lower() not in _UNITS:
        return None
    parts = (literals.constant(unit.name.upper(), span), *reader.read_all(rest))
    is_sum = name in _UNIT_SUMS
    called = "timestampadd" if is_sum else "timestampdiff"
    # A timestamp keeps its type; only Spark knows what a DATE becomes.
    moment = type_of(parts[2])
    moment = moment if moment in (TIMESTAMP, TIMESTAMP_NTZ) else None
    return e.Call(called, parts, moment if is_sum else LONG, reader.context.zone, span=span)


def _refuse_kinds(reader: ExprReader, node: exp.Anonymous, name: str) -> None:
    text = reader.text
    if name in FOREIGN:
        raise text.unsupported(
            f"function `{name}`", node, hint="remove it; impctl cannot know what it does"
        )
    if name in AGGREGATES:
        where = "inside another aggregate" if reader.in_aggregate else f"in {reader.clause}"
        raise text.error(
            f"Query `{text.name}` uses the aggregate function `{name}` {where}",
            node,
            hint="Spark does not allow it there; use HAVING or a subquery",
        )
    if name in WINDOW_ONLY:
        raise text.unsupported(f"`{name}` without OVER", node, hint="add OVER (...)")
    if name in GENERATORS:
        raise text.unsupported(f"the function `{name}`", node)
    if name not in SCALARS and name not in CAST_FUNCTIONS:
        raise text.error(
            f"Query `{text.name}` uses the function `{name}`, which Spark does not have",
            node,
            hint=did_you_mean(name, SCALARS | AGGREGATES)
            or "user-defined functions are not supported",
            code="function_unknown",
        )


def _call(reader: ExprReader, name: str, arguments: list[Node], span: e.Span | None) -> e.Expr:
    return _made(reader, name, reader.read_all(arguments), span)


def _made(reader: ExprReader, name: str, parts: tuple[e.Expr, ...], span: e.Span | None) -> e.Expr:
    result = e.Call(name, parts, _result_type(name, parts), reader.context.zone, span=span)
    return literals.computed(result)


def _result_type(name: str, parts: tuple[e.Expr, ...]) -> SqlType | None:
    for kind, names in _RESULT_TYPES:
        if name in names.split():
            return kind if kind != STRING or _is_plain_text(name, parts) else None
    if name in _SAME_TYPE and len(parts) == 1:
        result = type_of(parts[0])
        return result if result is not None and result.is_numeric else None
    if name in ("concat", "substring", "substr", "left", "right", "reverse"):
        first = parts if name == "concat" else parts[:1]
        return STRING if first and all(type_of(part) == STRING for part in first) else None
    return number_type(name, parts)


def _is_plain_text(name: str, parts: tuple[e.Expr, ...]) -> bool:
    """Whether a text function returns plain text, not collated text or padded bytes."""
    types = [type_of(part) for part in parts]
    if name in ("lpad", "rpad") and BINARY in types:
        return False
    return all(result is not None and result.kind is not Kind.OTHER for result in types)


def _rewritten(
    name: str, parts: tuple[e.Expr, ...], zone: str, span: e.Span | None
) -> e.Expr | None:
    """A function with its own node class; None for others."""
    null = literals.constant(None, span)
    match name, parts:
        case "coalesce", (_, *_):
            return e.Coalesce(parts, span=span)
        case (("nvl" | "ifnull"), (_, _)):
            return e.Coalesce(parts, span=span)
        case "nvl2", (tested, present, absent):
            return e.Case(((e.Not(e.IsNull(tested)), present),), absent, span=span)
        case "nullif", (value, unwanted):
            value = uncounted(value, unwanted)
            return e.Case(
                ((e.Compare(e.CompareOp.EQUAL, value, unwanted, span=span), null),),
                value,
                span=span,
            )
        case "if", (condition, yes, no):
            return e.Case(((condition, yes),), no, span=span)
        case "mod", (left, right):
            return e.Arithmetic(e.ArithmeticOp.REMAINDER, left, right, span=span)
        case "negative", (operand,):
            return e.Negate(operand, span=span)
        case "positive", (operand,):
            return _positive(operand, span)
        case "isnull", (operand,):
            return e.IsNull(operand, span=span)
        case "isnotnull", (operand,):
            return e.Not(e.IsNull(operand, span=span), span=span)
        case "equal_null", (left, right):
            return e.Compare(e.CompareOp.NULL_SAFE_EQUAL, left, right, span=span)
        case (("lcase" | "ucase"), (operand,)):
            name = "lower" if name == "lcase" else "upper"
            return e.Call(name, parts, _result_type(name, parts), span=span)
    if name in CAST_FUNCTIONS and len(parts) == 1:
        return literals.folded(e.Cast(parts[0], from_delta(CAST_FUNCTIONS[name]), zone, span=span))
    return None


def _positive(operand: e.Expr, span: e.Span | None) -> e.Expr | None:
    """`+x` of a number is the number, but a constant's digits do not count as a literal's; None
    where it may be a cast."""
    result = type_of(operand)
    if result is None or not result.is_numeric:
        return None
    return e.Cast(operand, result, span=span) if isinstance(operand, e.Literal) else operand

"""Typed expressions as SQL text for deltalake's engine (DataFusion), with Spark's meaning.

Law: the text computes the value that Spark computes; what cannot be promised is refused by name.
DataFusion differs in silence (integer arithmetic wraps, `/` truncates, `1.1` is a double), so every
step is spelled out with casts, integer arithmetic runs in decimals, and a predicate on which file
statistics may mislead (NaN, wide decimals) is kept from skipping files. A stored value that does
not fit fails as in Spark; an overflow that DataFusion passes over inside a condition, as it drops
casts there, is for `tables.write.matched_rows` to find.
Out of scope: reading the SQL text (`tables.write.update_sql`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import assert_never

from impctl.data.schema import BOOLEAN, DOUBLE, INTEGRAL, LONG, Column, Kind, SqlType
from impctl.errors import UnsupportedError
from impctl.expr.evaluate import find_blocker
from impctl.expr.nodes import (
    And,
    Arithmetic,
    ArithmeticOp,
    Call,
    Case,
    Cast,
    Coalesce,
    ColumnRef,
    Compare,
    CompareOp,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Mean,
    Negate,
    Not,
    Or,
)
from impctl.expr.numeric import NEGATED_DIGITS
from impctl.expr.types import as_decimal, common_type, narrowed, type_of
from impctl.types import AttributeId, ColumnName

_NAMES = {
    Kind.BOOLEAN: "BOOLEAN",
    Kind.BYTE: "TINYINT",
    Kind.SHORT: "SMALLINT",
    Kind.INTEGER: "INT",
    Kind.LONG: "BIGINT",
    Kind.FLOAT: "REAL",
    Kind.DOUBLE: "DOUBLE",
    Kind.STRING: "VARCHAR",
    Kind.DATE: "DATE",
}
_RANGES = {Kind.BYTE: 2**7, Kind.SHORT: 2**15, Kind.INTEGER: 2**31, Kind.LONG: 2**63}
_WIDE = "DECIMAL(20,0)"
_EXACT_DOUBLE_DIGITS = 15
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SKIPPABLE = frozenset({Kind.BOOLEAN, *INTEGRAL, Kind.DATE})
"""Types whose file statistics deltalake's own skipping was seen to use rightly.

Not texts: Spark may have cut the log's maximum of one in the middle of a character.
"""


class UntranslatableError(UnsupportedError):
    """An expression whose Spark meaning deltalake's engine cannot be made to compute."""

    default_code = "update_unsupported"


def predicate_text(predicate: Expr, names: dict[AttributeId, ColumnName]) -> str:
    """The predicate for a delete or update; rows where it is NULL are not matched."""
    text = _Renderer(names).render(predicate)
    # A bare CASE over partition columns alone makes deltalake take every row for a match.
    return text if _is_plain(predicate) else f"(CASE WHEN {text} THEN TRUE ELSE FALSE END) IS TRUE"


def _is_plain(predicate: Expr) -> bool:
    """Whether deltalake may skip files by it: columns beside literals, and nothing turned round."""
    match predicate:
        case And() | Or():
            return all(_is_plain(operand) for operand in predicate.operands)
        case Compare():
            sides = (predicate.left, predicate.right)
            return predicate.op is not CompareOp.NULL_SAFE_EQUAL and (
                _is_skippable(*sides) or _is_skippable(*reversed(sides))
            )
        case InList():
            return all(_is_skippable(predicate.operand, option) for option in predicate.options)
        case IsNull():
            return _is_skippable(predicate.operand, None)
        case Not():
            inner = predicate.operand
            return isinstance(inner, IsNull) and _is_skippable(inner.operand, None)
        case _:
            return False


def _is_skippable(column: Expr, beside: Expr | None) -> bool:
    if not isinstance(column, ColumnRef) or column.type.kind not in _SKIPPABLE:
        return False
    if beside is None:
        return True
    is_value = isinstance(beside, Literal) and beside.value is not None
    return is_value and _known(beside).kind in _SKIPPABLE


def is_one_of(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> str:
    """Whether these columns have the values of one of these rows; NULL is a value like others.

    A tree of equalities, IS NULL, AND and OR whose depth grows with the logarithm of the rows.
    """
    if len(rows) > 1:
        middle = len(rows) // 2
        return f"({is_one_of(columns, rows[:middle])} OR {is_one_of(columns, rows[middle:])})"
    pairs = zip(columns, rows[0], strict=True)
    return f"({' AND '.join(_is_value(column, value) for column, value in pairs)})"


def _is_value(column: Column, value: object) -> str:
    name = quoted(column.name)
    match value:
        case None if column.type.kind is Kind.STRING:
            # The protocol reads an empty text as NULL, deltalake as a text.
            return f"({name} IS NULL OR {name} = '')"
        case None:
            return f"{name} IS NULL"
        case bool():
            return f"{name} = {'TRUE' if value else 'FALSE'}"
        case str():
            return f"{name} = {_string(value)}"
        case datetime():
            return f"{name} = arrow_cast('{value.isoformat()}', 'Timestamp(Microsecond, None)')"
        case _:
            return f"{name} = CAST('{value}' AS {_type_name(column.type)})"


def value_text(value: Expr, target: SqlType, names: dict[AttributeId, ColumnName]) -> str:
    """The value as stored in a column of type `target`, under Spark's store assignment."""
    renderer = _Renderer(names)
    source = _known(value)
    _check_storable(source, target)
    return renderer.cast(renderer.render(value), source, target)


def _check_storable(source: SqlType, target: SqlType) -> None:
    if source == target or source.kind is Kind.NULL:
        return
    if source.is_numeric and target.is_numeric:
        return
    if source.is_integral and target.kind is Kind.STRING:
        return
    raise UntranslatableError(
        f"a `{source}` cannot be stored in a column of type `{target}`",
        hint="write a value of the column's type, with an explicit CAST if needed",
    )


def _known(expr: Expr) -> SqlType:
    result = type_of(expr)
    if result is None:
        raise UntranslatableError("the type of an expression is unknown")
    return result


class _Renderer:
    """Turns expressions into text; `names` gives the column each identity stands for."""

    def __init__(self, names: dict[AttributeId, ColumnName]) -> None:
        self._names = names

    def render(self, expr: Expr) -> str:
        """Text whose value and type are those of the expression in Spark."""
        blocker = find_blocker(expr)
        if blocker is not None:
            raise UntranslatableError(blocker.reason)
        return self._text(expr)

    def _text(self, expr: Expr) -> str:
        match expr:
            case Literal():
                return _literal(expr)
            case ColumnRef():
                return quoted(self._names[expr.id])
            case Arithmetic():
                return self._arithmetic(expr)
            case Negate():
                return self._negated(expr)
            case Compare() | And() | Or() | Not() | IsNull() | InList() | Like():
                return self._condition(expr)
            case Case():
                return self._case(expr)
            case Coalesce():
                wanted = _known(expr)
                parts = ", ".join(self._as(part, wanted) for part in expr.operands)
                return f"coalesce({parts})"
            case Cast():
                source = _known(expr.operand)
                _require_numbers(source, expr.type)
                return self.cast(self._text(expr.operand), source, expr.type)
            case Call():
                raise UntranslatableError(f"function `{expr.name}` is not available in updates")
            case Mean():
                raise UntranslatableError("AVG is not available in updates")
            case _:
                assert_never(expr)

    def _condition(self, expr: Compare | And | Or | Not | IsNull | InList | Like) -> str:
        match expr:
            case Compare():
                return self._pair(expr.op, expr.left, expr.right)
            case And():
                return self._joined(" AND ", expr.operands)
            case Or():
                return self._joined(" OR ", expr.operands)
            case Not():
                return f"(NOT {self._text(expr.operand)})"
            case IsNull():
                return f"({self._text(expr.operand)} IS NULL)"
            case InList():
                return self._in_list(expr)
            case Like():
                if "\\" in expr.pattern or expr.escape != "\\":
                    raise UntranslatableError("LIKE with escapes is not available in updates")
                return f"({self._text(expr.operand)} LIKE {_string(expr.pattern)})"
            case _:
                assert_never(expr)

    def cast(self, text: str, source: SqlType, target: SqlType) -> str:
        """CAST that fails on a value that does not fit; only pairs both engines do alike."""
        if source == target:
            return text
        if source.kind is Kind.DECIMAL and target.kind in (Kind.DOUBLE, Kind.FLOAT):
            if source.precision > _EXACT_DOUBLE_DIGITS:
                raise UntranslatableError(f"a cast from `{source}` to `{target}` may round")
        elif source.is_fractional and target.kind in (Kind.DECIMAL, Kind.STRING):
            raise UntranslatableError(f"a cast from `{source}` to `{target}` may round")
        return f"CAST({text} AS {_type_name(target)})"

    def _as(self, expr: Expr, wanted: SqlType) -> str:
        return self.cast(self._text(expr), _known(expr), wanted)

    def _joined(self, connective: str, operands: tuple[Expr, ...]) -> str:
        return f"({connective.join(self._text(operand) for operand in operands)})"

    def _arithmetic(self, expr: Arithmetic) -> str:
        result = _known(expr)
        if result.kind is Kind.DOUBLE:
            if expr.op in (ArithmeticOp.DIVIDE, ArithmeticOp.REMAINDER):
                _require_nonzero(expr)
            left, right = self._as(expr.left, DOUBLE), self._as(expr.right, DOUBLE)
            return f"({left} {expr.op.value} {right})"
        if expr.op is ArithmeticOp.INTEGER_DIVIDE:
            _require_nonzero(expr)
            _require_integral(expr)
            return f"({self._as(expr.left, LONG)} / {self._as(expr.right, LONG)})"
        if result.is_integral:
            left, right = self._text(expr.left), self._text(expr.right)
            wide = f"CAST({left} AS {_WIDE}) {expr.op.value} CAST({right} AS {_WIDE})"
            return f"CAST({wide} AS {_type_name(result)})"
        return self._decimals(expr, result)

    def _decimals(self, expr: Arithmetic, result: SqlType) -> str:
        if expr.op is ArithmeticOp.DIVIDE:
            raise UntranslatableError("division of decimals rounds differently in deltalake")
        left, right = _decimal_type(expr.left, expr.right), _decimal_type(expr.right, expr.left)
        whole = max(left.precision - left.scale, right.precision - right.scale)
        digits = (
            left.precision + right.precision + 1
            if expr.op is ArithmeticOp.MULTIPLY
            else whole + max(left.scale, right.scale) + 1
        )
        if digits > 38:
            raise UntranslatableError(
                f"`{left}` {expr.op.value} `{right}` needs more than 38 digits"
            )
        text = f"{self._as(expr.left, left)} {expr.op.value} {self._as(expr.right, right)}"
        return f"CAST({text} AS {_type_name(result)})"

    def _negated(self, expr: Negate) -> str:
        result, inner = _known(expr), self._text(expr.operand)
        if result.kind is Kind.DOUBLE:
            return f"(- {inner})"
        if result.is_integral:
            return f"CAST(- CAST({inner} AS {_WIDE}) AS {_type_name(result)})"
        if result.precision > NEGATED_DIGITS:
            raise UntranslatableError(
                f"`-` rounds a `{result}` to {NEGATED_DIGITS} digits in Spark"
            )
        return f"CAST(- {inner} AS {_type_name(result)})"

    def _pair(self, op: CompareOp, left: Expr, right: Expr) -> str:
        wanted = _comparison_type(left, right)
        sign = "IS NOT DISTINCT FROM" if op is CompareOp.NULL_SAFE_EQUAL else op.value
        return f"({self._comparable(left, wanted)} {sign} {self._comparable(right, wanted)})"

    def _comparable(self, expr: Expr, wanted: SqlType) -> str:
        """The value with one NaN for all: DataFusion orders NaN by its sign, Spark above all."""
        text = self._as(expr, wanted)
        if not wanted.is_fractional or isinstance(expr, Literal):
            return text
        return f"nanvl({text}, CAST('NaN' AS {_type_name(wanted)}))"

    def _in_list(self, expr: InList) -> str:
        """Pairs: the one type that Spark takes for all rounds nothing but longs and decimals."""
        types = [_known(part) for part in (expr.operand, *expr.options)]
        is_long = any(result.kind in (Kind.LONG, Kind.DECIMAL) for result in types)
        if is_long and any(result.is_fractional for result in types):
            raise UntranslatableError("an IN list that mixes LONG and DOUBLE values")
        pairs = (self._pair(CompareOp.EQUAL, expr.operand, option) for option in expr.options)
        return f"({' OR '.join(pairs)})"

    def _case(self, expr: Case) -> str:
        wanted = _known(expr)
        branches = " ".join(
            f"WHEN {self._text(condition)} THEN {self._as(result, wanted)}"
            for condition, result in expr.branches
        )
        return f"CASE {branches} ELSE {self._as(expr.default, wanted)} END"


def _comparison_type(left: Expr, right: Expr) -> SqlType:
    """The type both sides are compared in; beside a fitting literal an integer stays bare."""
    types = (_known(left), _known(right))
    for literal, own, beside in ((left, *types), (right, types[1], types[0])):
        if isinstance(literal, Literal) and own.is_integral and beside.is_integral:
            limit = _RANGES[beside.kind]
            if isinstance(literal.value, int) and -limit <= literal.value < limit:
                return beside
    result = common_type(*types)
    if result is None:
        raise UntranslatableError(f"a `{types[0]}` cannot be compared with a `{types[1]}`")
    return result


def _decimal_type(expr: Expr, beside: Expr) -> SqlType:
    return as_decimal(narrowed(expr, _known(expr), _known(beside)))


def _require_nonzero(expr: Arithmetic) -> None:
    """Division by zero fails in Spark but is infinite in DataFusion."""
    right = expr.right
    if not isinstance(right, Literal) or not right.value:
        raise UntranslatableError(
            "only a division by a number other than 0 is available in updates"
        )


def _require_numbers(source: SqlType, target: SqlType) -> None:
    """Casts to and from text, dates and conditions are not tried against DataFusion."""
    is_plain = source.is_numeric or source.kind in (Kind.BOOLEAN, Kind.NULL)
    if source != target and not (is_plain and (target.is_numeric or source.kind is Kind.NULL)):
        raise UntranslatableError(f"a cast from `{source}` to `{target}` is not available")


def _require_integral(expr: Arithmetic) -> None:
    if not (_known(expr.left).is_integral and _known(expr.right).is_integral):
        raise UntranslatableError("`div` is available in updates for integers only")


def _literal(expr: Literal) -> str:
    value, kind = expr.value, expr.type
    if value is None:
        return "NULL" if kind.kind is Kind.NULL else f"CAST(NULL AS {_type_name(kind)})"
    if kind == BOOLEAN:
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return _string(value)
    if kind.kind is Kind.DATE and isinstance(value, int):
        return f"CAST('{date(1970, 1, 1) + timedelta(days=value)}' AS DATE)"
    if kind.kind is Kind.TIMESTAMP and isinstance(value, int):
        instant = (_EPOCH + timedelta(microseconds=value)).isoformat()
        return f"arrow_cast('{instant}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    if kind.kind is Kind.TIMESTAMP_NTZ and isinstance(value, int):
        wall = (_EPOCH + timedelta(microseconds=value)).replace(tzinfo=None).isoformat()
        return f"arrow_cast('{wall}', 'Timestamp(Microsecond, None)')"
    if isinstance(value, bytes):
        raise UntranslatableError("binary literals are not available in updates")
    text = format(value, "f") if isinstance(value, Decimal) else repr(value)
    return f"CAST('{text}' AS {_type_name(kind)})"


def _type_name(kind: SqlType) -> str:
    if kind.kind is Kind.DECIMAL:
        return f"DECIMAL({kind.precision},{kind.scale})"
    name = _NAMES.get(kind.kind)
    if name is None:
        raise UntranslatableError(f"values of type `{kind}` are not available in updates")
    return name


def _string(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def quoted(name: ColumnName) -> str:
    """A column name that deltalake takes as written."""
    return '"' + name.replace('"', '""') + '"'

"""Conditions and values of update batches as SQL for deltalake, and deltalake's write errors.

Law: a failure after which the batch may be in the table is never reported as retryable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, assert_never

from deltalake.exceptions import CommitFailedError

from impctl.data.schema import BOOLEAN, DOUBLE, INTEGRAL, LONG, Column, Kind, SqlType
from impctl.errors import (
    EvaluationError,
    ImpctlError,
    Location,
    QueryError,
    RetryableError,
    StorageError,
    TableError,
    UnsupportedError,
    UsageError,
)
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
from impctl.plan.nodes import Plan, Project, Scan, Select
from impctl.sql.statement import parse_query
from impctl.tables.source import DeltaSource, refresh
from impctl.tables.storage import READ_FAILURES, failure_text

if TYPE_CHECKING:
    from impctl.tables.snapshot import Snapshot
    from impctl.types import AttributeId, ColumnName, TableVersion


_ROW_FAILURES = (
    "cast error",
    "cannot cast",
    "can't cast",
    "out of range",
    "too large to store",
    "too small to store",
    "division by zero",
    "divide by zero",
    "dividebyzero",
    "overflow",
)
_CONSTRAINT_FAILURES = ("constraint", "invariant", "append-only", "validation check")


@contextmanager
def plain_failures(source: DeltaSource, *, is_commit: bool = True) -> Iterator[None]:
    """Translate what deltalake raises while it writes or tries a batch."""
    try:
        yield
    except Exception as error:
        # deltalake raises a bare Exception for a value that does not fit.
        if type(error) is not Exception and not isinstance(error, READ_FAILURES):
            raise
        raise _write_failure(source, error, is_commit=is_commit) from error


def _moved_version(source: DeltaSource) -> TableVersion | None:
    """The table's newest version, if the batch was prepared for another one."""
    try:
        newest = refresh(source).version
    except ImpctlError:
        return None
    return newest if newest != source.version else None


def _write_failure(source: DeltaSource, error: Exception, *, is_commit: bool) -> ImpctlError:
    text = failure_text(error)
    lowered = text.lower()
    cannot_be_in = not is_commit or isinstance(error, CommitFailedError)
    moved = None if cannot_be_in else _moved_version(source)
    if moved is not None:
        # Not retryable: an insert would be written twice.
        return ImpctlError(
            f"Writing to table `{source.name}` failed, but the table moved from version "
            f"{source.version} to {moved}, so the batch may be in it: {text}",
            hint="check the table's newest version before you run the command again",
            code="batch_maybe_committed",
        )
    if "features required" in lowered or "unsupported" in lowered:
        return TableError(
            f"impctl cannot write to table `{source.name}`: {text}",
            hint="apply the batch with Spark and the Delta JAR",
            code="table_not_writable",
        )
    if any(phrase in lowered for phrase in _ROW_FAILURES):
        return EvaluationError(
            f"The update of table `{source.name}` fails on a row: {text}",
            hint="restrict `where` to rows for which the expression can be computed",
        )
    if any(phrase in lowered for phrase in _CONSTRAINT_FAILURES):
        return UsageError(
            f"Table `{source.name}` does not accept the batch: {text.split(' Preview of')[0]}",
            hint="correct the batch, or the table's constraints",
        )
    if isinstance(error, CommitFailedError):
        return RetryableError(
            f"Another writer changed table `{source.name}` at the same time: {text}",
            hint="run the command again",
        )
    return StorageError(
        f"Writing to table `{source.name}` failed: {text}",
        hint=f"check that `{source.path}` can be written, then run the command again",
    )


# Typed expressions as SQL text for deltalake's engine (DataFusion), with Spark's meaning. Law:
# the text computes the value that Spark computes; what cannot be promised is refused by name.
# DataFusion differs in silence (integer arithmetic wraps, `/` truncates, `1.1` is a double), so
# every step is spelled out with casts, integer arithmetic runs in decimals, and a predicate on
# which file statistics may mislead (NaN, wide decimals) is kept from skipping files. A stored
# value that does not fit fails as in Spark; an overflow that DataFusion passes over inside a
# condition, as it drops casts there, is for `tables.write.rows` to find.

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
"""Types for which deltalake's file skipping was verified. Not texts: Spark may have cut the log's
maximum in the middle of a character."""


class UntranslatableError(UnsupportedError):
    """An expression that deltalake's engine cannot compute as Spark does."""

    default_code = "update_unsupported"


def _is_plain(predicate: Expr) -> bool:
    """Whether deltalake may skip files by it: columns beside literals, without negation."""
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
    """Whether these columns have the values of one of these rows; NULL is a value like others. A
    tree of equalities, IS NULL, AND and OR of a depth logarithmic in the rows."""
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
    """Renders expressions as text; `names` has the column of each identity."""

    def __init__(self, names: dict[AttributeId, ColumnName]) -> None:
        self._names = names

    def render(self, expr: Expr) -> str:
        """Text with the value and type of the expression in Spark."""
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
        """CAST that fails on a value that does not fit; only pairs both engines convert alike."""
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
            if not (_known(expr.left).is_integral and _known(expr.right).is_integral):
                raise UntranslatableError("`div` is available in updates for integers only")
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
        """Pairs: Spark's common type for all rounds only longs and decimals."""
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
    """The type in which both sides are compared; an integer beside a fitting literal is not
    cast."""
    types = (_known(left), _known(right))
    for literal, kind, other in ((left, *types), (right, types[1], types[0])):
        if isinstance(literal, Literal) and kind.is_integral and other.is_integral:
            limit = _RANGES[other.kind]
            if isinstance(literal.value, int) and -limit <= literal.value < limit:
                return other
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
    """Casts to and from text, dates and conditions are not verified with DataFusion."""
    is_plain = source.is_numeric or source.kind in (Kind.BOOLEAN, Kind.NULL)
    if source != target and not (is_plain and (target.is_numeric or source.kind is Kind.NULL)):
        raise UntranslatableError(f"a cast from `{source}` to `{target}` is not available")


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
    """A column name quoted for deltalake."""
    return '"' + name.replace('"', '""') + '"'


# The SQL texts of an update batch, read with Spark's meaning and written for deltalake. Law:
# names, types and literals are those of the query language (`sql.statement`); a text that cannot
# be given that meaning by deltalake is refused, never passed on as it is.

_TABLE = "updated_table"
_UNREADABLE = "query_syntax"
_COMPUTED = re.compile(r"[()|*+=<>]")
_DAY = re.compile(r"\d{4}-\d\d?-\d\d?")
_TIME = re.compile(rf"{_DAY.pattern}([ T]\d.*)?")
_EXAMPLES = (
    "values of `set` are SQL expressions: text and times need their own quotes, as in "
    "\"'Berlin'\" or \"TIMESTAMP '2026-01-31 12:00:00'\""
)


def where_text(snapshot: Snapshot, where: str) -> str:
    """The predicate of a delete or update, for deltalake; rows where it is NULL do not match."""
    scan, predicate = read_condition(snapshot, where)
    try:
        text = _Renderer(_names(scan)).render(predicate)
    except UntranslatableError as error:
        raise untranslatable(snapshot, where, error.message, error.hint) from error
    # For a bare CASE over partition columns alone deltalake matches every row.
    return text if _is_plain(predicate) else f"(CASE WHEN {text} THEN TRUE ELSE FALSE END) IS TRUE"


def read_condition(snapshot: Snapshot, where: str) -> tuple[Scan, Expr]:
    """A condition on the table's rows, and the scan whose columns it names."""
    scan, predicate, _ = _read(snapshot, f"SELECT 1 FROM {_TABLE} WHERE {where}", where)
    if predicate is None or type_of(predicate) != BOOLEAN:
        raise UsageError(
            f"`where` must be a condition on the rows of table `{snapshot.table}`: {shown(where)}",
            hint="write a comparison such as `sid = 3`",
        )
    return scan, predicate


def assignment_texts(
    snapshot: Snapshot,
    assignments: Mapping[ColumnName, str],
    places: Mapping[ColumnName, Location] = MappingProxyType({}),
) -> dict[ColumnName, str]:
    """Assignments for deltalake: quoted column to value text. Errors have the assignment's
    place."""
    texts: dict[ColumnName, str] = {}
    for name, written in assignments.items():
        try:
            column = _column(snapshot, name)
            if quoted(column.name) in texts:
                raise UsageError(
                    f"Column `{snapshot.table}.{column.name}` is set twice",
                    hint="column names are not case-sensitive",
                )
            texts[quoted(column.name)] = _assigned(snapshot, column, written)
        except ImpctlError as error:
            raise error.at(places.get(name, error.location)) from error
    return texts


def _column(snapshot: Snapshot, name: ColumnName) -> Column:
    column = snapshot.schema.find(name)
    if column is None:
        known = ", ".join(f"`{known}`" for known in snapshot.schema.names)
        raise UsageError(
            f"Table `{snapshot.table}` has no column `{name}` to set",
            hint=f"its columns are {known}",
        )
    return column


def _assigned(snapshot: Snapshot, column: Column, written: str) -> str:
    where = f"`set` of `{snapshot.table}.{column.name}`"
    try:
        scan, _, values = _read(snapshot, f"SELECT {written} FROM {_TABLE}", written)
        if len(values) != 1:
            raise UsageError(
                f"{where} must be one value: {shown(written)}",
                hint="write one expression per column",
            )
        # Otherwise an alias or a clause behind the value would be lost, as in `city hall`.
        scan, _, values = _read(snapshot, f"SELECT ({written}\n) FROM {_TABLE}", written)
        _check_length(snapshot, column, values[0])
        text = value_text(values[0], column.type, _names(scan))
    except QueryError as error:
        located = error.saying(f"{where} cannot be used: {error.message}")
        raise located.hinting(_hint(column, written, error)) from error
    except UntranslatableError as error:
        literal = _literal_of(column, written) if column.type.kind is not Kind.STRING else None
        refused = untranslatable(snapshot, written, error.message, error.hint)
        raise (refused if literal is None else refused.hinting(_meant(literal))) from error
    if column.type.kind is Kind.STRING and column.name in snapshot.partition_columns:
        # The log reads an empty text as NULL, so a copied row would be in both partitions.
        text = f"nullif({text}, '')"
    return text


def _hint(column: Column, written: str, error: QueryError) -> str | None:
    literal = _literal_of(column, written)
    hint = error.hint if error.code != _UNREADABLE else None
    if literal is None and hint is not None:
        return hint
    meant = _EXAMPLES if literal is None else _meant(literal)
    return meant if hint is None else f"{meant}; {hint}"


def _meant(literal: str) -> str:
    return f'values of `set` are SQL expressions: write this one as "{literal}"'


def _literal_of(column: Column, written: str) -> str | None:
    """The literal that an unquoted text probably means; None if it is none."""
    text = written.strip().strip("'")
    if not text.isprintable() or any(mark in text for mark in "'\"\\"):
        return None
    match column.type.kind:
        case Kind.STRING:
            return None if _COMPUTED.search(text) else f"'{text}'"
        case Kind.DATE if _DAY.fullmatch(text) and _is_a_day(text):
            return f"DATE '{text}'"
        case Kind.TIMESTAMP if _TIME.fullmatch(text) and _is_a_day(re.split("[ T]", text)[0]):
            return f"TIMESTAMP '{text}'"
        case _:
            return None


def _is_a_day(text: str) -> bool:
    try:
        date(*map(int, text.split("-")))
    except ValueError:
        return False
    return True


def _check_length(snapshot: Snapshot, column: Column, value: Expr) -> None:
    """Refuse values too long for VARCHAR(n), whose length deltalake ignores."""
    limit = snapshot.columns.longest.get(column.name)
    if limit is None:
        return
    if isinstance(value, Literal):
        text = "" if value.value is None else value.value
        if isinstance(text, str) and len(text) <= limit:
            return
    raise UntranslatableError(
        f"deltalake does not enforce the length of `{column.name}`, a varchar({limit})",
        hint=f"set NULL or quoted text of at most {limit} characters",
    )


def _read(snapshot: Snapshot, sql: str, written: str) -> tuple[Scan, Expr | None, tuple[Expr, ...]]:
    """Scan, condition and outputs of a SELECT over the one table; refuses any other query."""
    try:
        query = parse_query(sql, {_TABLE: snapshot.schema}, name=f"update of {snapshot.table}")
    except QueryError as error:
        # A position inside the generated SELECT would mislead.
        raise QueryError(error.message, hint=error.hint, code=error.code) from error
    node: Plan = query.root
    outputs: tuple[Expr, ...] = ()
    predicates: list[Expr] = []
    if isinstance(node, Project):
        outputs = tuple(output.expr for output in node.outputs)
        node = node.child
    while isinstance(node, Select):
        predicates.append(node.predicate)
        node = node.child
    if not isinstance(node, Scan):
        raise UsageError(
            f"Only expressions over the rows of table `{snapshot.table}` can be used in an update:"
            f" {shown(written)}",
            hint="remove subqueries, aggregates and clauses such as GROUP BY",
        )
    predicate = And(tuple(predicates)) if len(predicates) > 1 else next(iter(predicates), None)
    return node, predicate, outputs


def _names(scan: Scan) -> dict[str, ColumnName]:
    return {attribute.id: attribute.name for attribute in scan.attributes}


def untranslatable(
    snapshot: Snapshot, written: str, why: str, hint: str | None = None
) -> UntranslatableError:
    """The error for an update that deltalake cannot execute."""
    return UntranslatableError(
        f"An update of table `{snapshot.table}` cannot use `{shown(written)}`: {why}",
        hint="run this update in Spark instead" if hint is None else hint,
    )


def shown(written: str) -> str:
    """A text of the file on one line, for messages."""
    return " ".join(written.split())

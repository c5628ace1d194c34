"""The rows that a delete or update matches, and their new values, computed before anything is
written.

Law: impctl's own engine decides, with Spark's meaning, which rows match and what becomes of them.
deltalake is given values, never a condition or an expression: it merges a table that has each
combination of values in the columns read, and beside it the values to set. Rows with the same
values there match alike, so no key is needed. NaN matches NaN of the same bits, NULL matches NULL,
and -0.0 matches 0.0, which no condition tells apart. What the engine cannot compute exactly, and
what is more than a simple condition or value, is refused by name. Memory is proportional to these
combinations.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from impctl.data.schema import BOOLEAN, DOUBLE, Column, Kind
from impctl.data.vector import Vector, from_arrow, typed_arrow
from impctl.errors import (
    EvaluationError,
    ImpctlError,
    Location,
    NotExactError,
    QueryError,
    TableError,
    UnsupportedError,
    UsageError,
)
from impctl.expr.evaluate import Condition, Evaluator, find_blocker, find_condition_blocker
from impctl.expr.nodes import (
    And,
    Arithmetic,
    Call,
    Case,
    Cast,
    Coalesce,
    ColumnRef,
    Compare,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    children,
    columns_of,
    walk,
)
from impctl.expr.types import type_of
from impctl.plan.nodes import Plan, Project, Scan, Select
from impctl.sql.statement import parse_query
from impctl.tables.rows import bare_rows, read_batches
from impctl.tables.snapshot import Snapshot, arrow_type
from impctl.tables.statistics import prune_by_condition
from impctl.tables.write.rows import storable

if TYPE_CHECKING:
    from impctl.types import AttributeId, ColumnName


_TABLE = "updated_table"
_ACCESS = f"{_TABLE}#1"
_EXACT_DOUBLE_DIGITS = 15
_UNREADABLE = "query_syntax"
_COMPUTED = re.compile(r"[()|*+=<>]")
_DAY = re.compile(r"\d{4}-\d\d?-\d\d?")
_TIME = re.compile(rf"{_DAY.pattern}([ T]\d.*)?")
_EXAMPLES = (
    "values of `set` are SQL expressions: text and times need their own quotes, as in "
    "\"'Berlin'\" or \"TIMESTAMP '2026-01-31 12:00:00'\""
)
_CONSTANT = (Literal, Negate, Arithmetic)
_VALUE = (*_CONSTANT, ColumnRef)
_SIMPLE_CONDITIONS = (
    "a condition compares columns and constants with `=`, `<`, IN, BETWEEN, IS NULL and the like, "
    "joined by AND, OR and NOT; run other updates in Spark"
)
_SIMPLE_VALUES = "a value is a constant, or arithmetic on columns; run other updates in Spark"


class MatchedRows(Struct, frozen=True):
    """How many rows a batch matches, and what deltalake merges."""

    rows: int
    keys: tuple[ColumnName, ...]
    """The columns that decide; without any, every row matches."""
    assigned: tuple[ColumnName, ...]
    values: pa.Table
    """A row per combination of values: columns `k0`, `k1`, ... as `keys`, `v0`, ... to set."""
    texts: frozenset[ColumnName] = frozenset()
    """Partition columns of text: the protocol reads `''` there as NULL, deltalake as a text."""

    @property
    def predicate(self) -> str:
        """The condition of the merge of `target` and `source`."""
        pairs = []
        for at, name in enumerate(self.keys):
            stored = f"target.{_quoted(name)}"
            stored = f"nullif({stored}, '')" if name in self.texts else stored
            pairs.append(f"({stored} IS NOT DISTINCT FROM source.k{at})")
        return " AND ".join(pairs) or "TRUE"

    @property
    def updates(self) -> dict[str, str]:
        """The value of each column to set, in the names of the merge."""
        return {_quoted(name): f"source.v{at}" for at, name in enumerate(self.assigned)}


def _quoted(name: ColumnName) -> str:
    return '"' + name.replace('"', '""') + '"'


class _Change(Struct, frozen=True):
    column: Column
    written: str
    value: Expr
    """In the column's type."""


def match_rows(
    snapshot: Snapshot,
    where: str | None,
    assignments: Mapping[ColumnName, str] = MappingProxyType({}),
    places: Mapping[ColumnName, Location] = MappingProxyType({}),
) -> MatchedRows:
    """The rows for which `where` is true (without one every row), and their new values. Raises
    UsageError or QueryError for invalid texts, UnsupportedError for what impctl does not compute,
    EvaluationError if the batch fails on a row. Errors of assignments have their places."""
    changes = _read_assignments(snapshot, assignments, places)
    condition: Expr = Literal(True, BOOLEAN) if where is None else _read_where(snapshot, where)
    changed = {change.column.name for change in changes}
    constraints = dict(_constraints(snapshot, changed))
    read = _columns(
        snapshot, condition, *(change.value for change in changes), *constraints.values()
    )
    rows, keys = _match(snapshot, where, condition, read)
    vectors = _vectors(read, keys)
    new: dict[ColumnName, pa.Array] = {}
    for change in changes:
        with _failures(snapshot, change.written):
            computed = Evaluator(change.value).values(vectors, len(keys))
        array = typed_arrow(computed, arrow_type(change.column.type))
        new[change.column.name] = storable(snapshot, change.column, array)
    for key, column in read.items():
        if column.name in new:
            vectors[key] = from_arrow(new[column.name], column.type)
    for text, constraint in constraints.items():
        _check_constraint(snapshot, text, constraint, vectors, len(keys))
    names = [*(f"k{at}" for at in range(len(read))), *(f"v{at}" for at in range(len(new)))]
    values = [*(keys.column(column.name) for column in read.values()), *new.values()]
    texts = frozenset(c.name for c in read.values() if c.type.kind is Kind.STRING)
    return MatchedRows(
        rows,
        tuple(column.name for column in read.values()),
        tuple(new),
        pa.Table.from_arrays(values, names) if names else bare_rows(1),
        texts.intersection(snapshot.partition_columns),
    )


def check_rows(snapshot: Snapshot, rows: pa.Table) -> None:
    """Refuse rows that violate a constraint, and constraints that impctl cannot test."""
    for text, condition in _constraints(snapshot, rows.column_names) if len(rows) else ():
        vectors = _vectors(_columns(snapshot, condition), rows)
        _check_constraint(snapshot, text, condition, vectors, len(rows))


def not_writable(snapshot: Snapshot, reason: str) -> TableError:
    return TableError(
        f"impctl cannot write to table `{snapshot.table}`: {reason}",
        hint="apply the batch with Spark and the Delta JAR",
        code="table_not_writable",
    )


def _constraints(snapshot: Snapshot, changed: Collection[ColumnName]) -> Iterator[tuple[str, Expr]]:
    """The constraints that read a changed column. deltalake tests them too, but by its own rules:
    `7 / 2` is 3, a NaN may be below 0."""
    for text in snapshot.constraints:
        try:
            condition = _parse_condition(snapshot, text)
        except ImpctlError as error:
            reason = f"its constraint `{text}` cannot be parsed by impctl"
            raise not_writable(snapshot, reason) from error
        read = _columns(snapshot, condition).values()
        if read and not any(column.name in changed for column in read):
            continue
        is_opaque = any(column.type.kind is Kind.OTHER for column in read)
        if is_opaque or find_blocker(condition) is not None:
            raise not_writable(snapshot, f"its constraint `{text}` cannot be checked by impctl")
        yield text, condition


def _check_constraint(
    snapshot: Snapshot, text: str, condition: Expr, vectors: dict[AttributeId, Vector], rows: int
) -> None:
    if not Condition(condition).truth(vectors, rows).sure_true().all():
        raise UsageError(
            f"Table `{snapshot.table}` does not accept the batch: a row breaks its constraint"
            f" `{text}`",
            hint="correct the batch, or the table's constraints",
        )


def _columns(snapshot: Snapshot, *exprs: Expr) -> dict[AttributeId, Column]:
    """The columns that are read, each once, in the schema's order."""
    used = frozenset[str]().union(*map(columns_of, exprs))
    ids = ((f"{_ACCESS}.{column.name}", column) for column in snapshot.schema)
    return {key: column for key, column in ids if key in used}


def _vectors(read: Mapping[AttributeId, Column], rows: pa.Table) -> dict[AttributeId, Vector]:
    return {key: from_arrow(rows.column(c.name), c.type) for key, c in read.items()}


def _match(
    snapshot: Snapshot, where: str | None, condition: Expr, read: dict[AttributeId, Column]
) -> tuple[int, pa.Table]:
    """The number of matching rows, and the combinations of values they have."""
    names = [snapshot.readable(column.name).name for column in read.values()]
    files = prune_by_condition(snapshot, condition, {key: c.name for key, c in read.items()})
    rows, parts = 0, []
    for batch in read_batches(snapshot, names, files):
        with _failures(snapshot, where or ""):
            truth = Condition(condition).truth(_vectors(read, batch), len(batch))
            matches = truth.sure_true()
        rows += int(matches.sum())
        if names:
            parts.append(_distinct(batch.filter(pa.array(matches)), names))
    if not names:
        return rows, bare_rows(min(rows, 1))
    kinds = pa.schema([(c.name, arrow_type(c.type)) for c in read.values()])
    return rows, _distinct(pa.concat_tables([kinds.empty_table(), *parts]), names)


def _distinct(rows: pa.Table, names: Sequence[ColumnName]) -> pa.Table:
    """The rows, each once; Arrow distinguishes the two zeros and the bits of NaN."""
    for at, name in enumerate(names):
        if pa.types.is_floating(rows.column(name).type):
            # deltalake's join holds both zeros to be equal.
            positive = pc.add(rows.column(name), pa.scalar(0, rows.column(name).type))
            rows = rows.set_column(at, name, positive)
    return rows.group_by(names, use_threads=False).aggregate([])


@contextmanager
def _failures(snapshot: Snapshot, written: str) -> Iterator[None]:
    """Translate failures of the engine on a row."""
    try:
        yield
    except NotExactError as error:
        raise _refused(snapshot, written, "impctl cannot compute it exactly on a row") from error
    except EvaluationError as error:
        raise EvaluationError(
            f"`{shown(written)}` fails on a row of table `{snapshot.table}`: {error.message}",
            hint="restrict `where` to rows for which the expression can be computed",
        ) from error


def _read_where(snapshot: Snapshot, where: str) -> Expr:
    condition = _parse_condition(snapshot, where)
    complex_part = _complex_part(condition)
    if complex_part is not None:
        reason = f"{_named(complex_part)} is not available in conditions of updates"
        raise _refused(snapshot, where, reason, _SIMPLE_CONDITIONS)
    blocker = find_condition_blocker(condition)
    if blocker is not None:
        raise _refused(snapshot, where, blocker.reason)
    return condition


def _complex_part(condition: Expr) -> Expr | None:
    """The first part that makes the condition more than a simple one."""
    match condition:
        case And() | Or() | Not():
            parts = map(_complex_part, children(condition))
            return next((part for part in parts if part is not None), None)
        case Compare() | InList() | IsNull():
            return next((side for side in children(condition) if not _is_simple_side(side)), None)
        case ColumnRef() | Literal():
            return None
        case _:
            return condition


def _is_simple_side(side: Expr) -> bool:
    return isinstance(side, ColumnRef) or all(isinstance(part, _CONSTANT) for part in walk(side))


def _named(part: Expr) -> str:
    """What the expression is called in SQL."""
    match part:
        case Call():
            return f"function `{part.name}`"
        case Like() | Case() | Coalesce() | Cast():
            return type(part).__name__.upper()
        case Arithmetic() | Negate():
            return "arithmetic on columns"
        case _:
            return "a condition inside an expression"


def _parse_condition(snapshot: Snapshot, text: str) -> Expr:
    """A condition on the table's rows, which may be more than a simple one."""
    predicate, _ = _parse(snapshot, f"SELECT 1 FROM {_TABLE} WHERE {text}", text)
    if predicate is None or type_of(predicate) != BOOLEAN:
        raise UsageError(
            f"`where` must be a condition on the rows of table `{snapshot.table}`: {shown(text)}",
            hint="write a comparison such as `sid = 3`",
        )
    return predicate


def _read_assignments(
    snapshot: Snapshot, assignments: Mapping[ColumnName, str], places: Mapping[ColumnName, Location]
) -> list[_Change]:
    changes: dict[ColumnName, _Change] = {}
    for name, written in assignments.items():
        try:
            column = snapshot.schema.find(name)
            if column is None:
                known = ", ".join(f"`{known}`" for known in snapshot.schema.names)
                raise UsageError(
                    f"Table `{snapshot.table}` has no column `{name}` to set",
                    hint=f"its columns are {known}",
                )
            if column.name in changes:
                raise UsageError(
                    f"Column `{snapshot.table}.{column.name}` is set twice",
                    hint="column names are not case-sensitive",
                )
            changes[column.name] = _read_assignment(snapshot, column, written)
        except ImpctlError as error:
            raise error.at(places.get(name, error.location)) from error
    return list(changes.values())


def _read_assignment(snapshot: Snapshot, column: Column, written: str) -> _Change:
    where = f"`set` of `{snapshot.table}.{column.name}`"
    try:
        _, values = _parse(snapshot, f"SELECT {written} FROM {_TABLE}", written)
        if len(values) != 1:
            raise UsageError(
                f"{where} must be one value: {shown(written)}",
                hint="write one expression per column",
            )
        # Otherwise an alias or a clause behind the value would be lost, as in `city hall`.
        _, values = _parse(snapshot, f"SELECT ({written}\n) FROM {_TABLE}", written)
        return _Change(column, written, _stored(snapshot, column, written, values[0]))
    except QueryError as error:
        located = error.saying(f"{where} cannot be used: {error.message}")
        raise located.hinting(_hint(column, written, error)) from error


def _stored(snapshot: Snapshot, column: Column, written: str, value: Expr) -> Expr:
    """The value in the column's type, under Spark's store assignment."""
    source, target = type_of(value), column.type
    complex_part = next((part for part in walk(value) if not isinstance(part, _VALUE)), None)
    if complex_part is not None:
        reason = f"{_named(complex_part)} is not available in values of updates"
        raise _refused(snapshot, written, reason, _SIMPLE_VALUES)
    if source != target and not (
        source is None
        or source.kind is Kind.NULL
        or source.is_numeric
        and target.is_numeric
        or source.is_integral
        and target.kind is Kind.STRING
    ):
        literal = None if target.kind is Kind.STRING else _literal_of(column, written)
        hint = "write a value of the column's type" if literal is None else _meant(literal)
        reason = f"a `{source}` cannot be stored in a column of type `{target}`"
        raise _refused(snapshot, written, reason, hint)
    if source is not None and source.kind is Kind.DECIMAL and target.kind is Kind.FLOAT:
        # With more digits, rounding twice may differ from Spark's.
        value = Cast(value, DOUBLE) if source.precision <= _EXACT_DOUBLE_DIGITS else value
    stored = Cast(value, target)
    blocker = find_blocker(stored)
    if blocker is not None:
        raise _refused(snapshot, written, blocker.reason)
    return stored


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


def _parse(snapshot: Snapshot, sql: str, written: str) -> tuple[Expr | None, tuple[Expr, ...]]:
    """Condition and outputs of a SELECT over the one table; refuses any other query."""
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
    return predicate, outputs


def _refused(
    snapshot: Snapshot, written: str, why: str, hint: str = "run this update in Spark instead"
) -> UnsupportedError:
    return UnsupportedError(
        f"An update of table `{snapshot.table}` cannot use `{shown(written)}`: {why}",
        hint=hint,
        code="update_unsupported",
    )


def shown(written: str) -> str:
    """A text of the file on one line, for messages."""
    return " ".join(written.split())

"""The SQL texts of an update batch, read with Spark's meaning and written for deltalake.

Law: names, types and literals are those of the query language (`sql.statement`); a text that
cannot be given that meaning by deltalake is refused, never passed on as it is.
Out of scope: committing (`tables.write.updates`), how a node is spelled
(`tables.write.datafusion`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from types import MappingProxyType

from impctl.data.schema import BOOLEAN, Column, Kind
from impctl.errors import ImpctlError, Location, QueryError, UsageError
from impctl.expr.nodes import And, Expr, Literal
from impctl.expr.types import type_of
from impctl.plan.nodes import Plan, Project, Scan, Select
from impctl.sql.statement import parse_query
from impctl.tables.snapshot import Snapshot
from impctl.tables.write.datafusion import UntranslatableError, predicate_text, quoted, value_text
from impctl.types import ColumnName

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
    """The predicate of a delete or update, for deltalake."""
    scan, predicate = read_condition(snapshot, where)
    try:
        return predicate_text(predicate, _names(scan))
    except UntranslatableError as error:
        raise _refused(snapshot, where, error) from error


def read_condition(snapshot: Snapshot, where: str) -> tuple[Scan, Expr]:
    """A condition on the table's rows, and the scan whose columns it names."""
    scan, predicate, _ = _read(snapshot, f"SELECT 1 FROM {_TABLE} WHERE {where}", where)
    if predicate is None or type_of(predicate) != BOOLEAN:
        raise UsageError(
            f"`where` must be a condition on the rows of table `{snapshot.table}`: {_shown(where)}",
            hint="write a comparison such as `sid = 3`",
        )
    return scan, predicate


def assignment_texts(
    snapshot: Snapshot,
    assignments: Mapping[ColumnName, str],
    places: Mapping[ColumnName, Location] = MappingProxyType({}),
) -> dict[ColumnName, str]:
    """Column and value per assignment, for deltalake: quoted column name to value text.

    What is wrong with one is told at its place, where that is known.
    """
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
    """The value of one column, for deltalake."""
    told = f"`set` of `{snapshot.table}.{column.name}`"
    try:
        scan, _, values = _read(snapshot, f"SELECT {written} FROM {_TABLE}", written)
        if len(values) != 1:
            raise UsageError(
                f"{told} must be one value: {_shown(written)}",
                hint="write one expression per column",
            )
        # An alias or a clause behind the value would be lost: `city hall` is no column `city`.
        scan, _, values = _read(snapshot, f"SELECT ({written}\n) FROM {_TABLE}", written)
        _check_length(snapshot, column, values[0])
        text = value_text(values[0], column.type, _names(scan))
    except QueryError as error:
        said = error.saying(f"{told} cannot be used: {error.message}")
        raise said.hinting(_hint(column, written, error)) from error
    except UntranslatableError as error:
        literal = _literal(column, written) if column.type.kind is not Kind.STRING else None
        refused = _refused(snapshot, written, error)
        raise (refused if literal is None else refused.hinting(_meant(literal))) from error
    if column.type.kind is Kind.STRING and column.name in snapshot.partition_columns:
        # The log has no empty text: it reads one as NULL, and a copied row would be in both.
        text = f"nullif({text}, '')"
    return text


def _hint(column: Column, written: str, error: QueryError) -> str | None:
    """What to write in place of a text that is no expression over the table's columns."""
    literal = _literal(column, written)
    own = error.hint if error.code != _UNREADABLE else None
    if literal is None and own is not None:
        return own
    meant = _EXAMPLES if literal is None else _meant(literal)
    return meant if own is None else f"{meant}; {own}"


def _meant(literal: str) -> str:
    return f'values of `set` are SQL expressions: write this one as "{literal}"'


def _literal(column: Column, written: str) -> str | None:
    """The literal that somebody meant who wrote its characters alone; None if it is none."""
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
    """Refuse what may be too long for VARCHAR(n), which to deltalake is a text of any length."""
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
        # The place inside the SELECT made up here would mislead.
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
            f" {_shown(written)}",
            hint="remove subqueries, aggregates and clauses such as GROUP BY",
        )
    predicate = None
    if predicates:
        predicate = predicates[0] if len(predicates) == 1 else And(tuple(predicates))
    return node, predicate, outputs


def _names(scan: Scan) -> dict[str, ColumnName]:
    return {attribute.id: attribute.name for attribute in scan.attributes}


def _refused(snapshot: Snapshot, written: str, error: UntranslatableError) -> UntranslatableError:
    return UntranslatableError(
        f"An update of table `{snapshot.table}` cannot use `{_shown(written)}`: {error.message}",
        hint=error.hint if error.hint is not None else "run this update in Spark instead",
    )


def _shown(written: str) -> str:
    """A text of the file as a message shows it: on one line."""
    return " ".join(written.split())

"""Why: the table rows from which a row of a result is derived, and what needs some of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import compress
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec.structs import replace

from impctl.compile.compile import compile_answer
from impctl.compile.flows import BlockedError
from impctl.compile.provenance.absorbed import (
    AbsorbedRows,
    known_rows,
    leaves_of,
    numbered,
    rows_without,
    smallest_by_functions,
)
from impctl.compile.provenance.derivation import RowLineage, derivation_of
from impctl.compile.provenance.program import Made, made_rows
from impctl.data.schema import INTEGRAL, Column, Kind, SqlType
from impctl.data.vector import from_arrow
from impctl.engine.fixpoint.absorption import Shipping
from impctl.errors import QueryError, UsageError
from impctl.expr.nodes import And, Compare, CompareOp, Expr, IsNull, Literal, LiteralValue, Or
from impctl.plan import nodes as p
from impctl.rules.optimize import apply_rules
from impctl.service.answer import ExcludedRows, Passthrough, engine_cannot, engine_rows
from impctl.service.context import Context, limits_of
from impctl.service.filters import Pruned, files_by_table, files_in, filters_of, wanted_files
from impctl.service.maintenance_plan import QueryState, reopened
from impctl.service.memory_limit import within_memory
from impctl.service.parameters import condition_on, parsed
from impctl.service.resolve import ResolvedSketch, chosen_read, resolved
from impctl.service.result_changes import RowsOf, changes_between
from impctl.service.results import (
    ENGINE,
    STATE,
    Outcome,
    RowValue,
    WhyEntry,
    WhyResult,
    WithoutResult,
    rows_of,
)
from impctl.service.settings import GivenValues, QueryRequest
from impctl.service.stored import StateMeta
from impctl.stopwatch import Stopwatch
from impctl.tables.rows import read_rows
from impctl.workload.models import LineageMode as LineageRecord
from impctl.workload.models import SketchPolicy
from impctl.workload.yaml import suggestion

if TYPE_CHECKING:
    from impctl.engine.batch import Batch
    from impctl.rules.finalize import AnswerPlan
    from impctl.service.prepare import PreparedQuery
    from impctl.types import AccessId, ColumnName, ParameterValue, QueryName, TableName


# Law: no table is changed. The sketch is maintained first, as for `query`. Then the state answers
# if recursion is kept by absorption, else the engine reads through the sketch. Spark is not
# started.


def why(
    ctx: Context,
    query: QueryName | None,
    params: GivenValues = (),
    row: RowGiven = (),
    without: Sequence[str] = (),
    *,
    limit: int | None = None,
) -> Outcome:
    """What derives the row of the answer with these values, or how the answer changes without some
    rows. Either `row` has values of columns of the answer, or `without` conditions on rows of its
    tables. `limit`: how many rows are shown."""
    if query is not None:
        # Before anything else is said of a query that is not there.
        ctx.queries([query])
    if bool(row) == bool(without):
        raise UsageError(
            "`why` takes either a row of the result or rows to remove, not both",
            hint="give `--row NAME=VALUE`, or `--without CONDITION`",
            code="why_of_what",
        )
    # Sketches of witnesses lack some of the lineage.
    spec = ctx.query(query)
    is_whole = spec.lineage is not LineageRecord.WITNESS
    use = SketchPolicy.ALWAYS if is_whole else SketchPolicy.NEVER
    match = resolved(ctx, QueryRequest(spec.name, params, sketch=use))
    if isinstance(match, Passthrough):
        raise match.refusal
    if not is_whole:
        reason = "its sketch holds only witnesses (`lineage: witness`), not all relevant rows"
        match = replace(match, reason=reason)
    watch = Stopwatch()
    if without:
        changed = without_from_state(ctx, match, without) or answer_without(ctx, match, without)
        return Outcome((replace(changed, limit=limit, elapsed_ms=watch.ms),), match.warnings)
    derived = row_from_state(ctx, match, row) or derived_row(ctx, match, row)
    shown = derived.rows[:limit]
    result = replace(derived, rows=shown, limit=limit, elapsed_ms=watch.ms)
    return Outcome((result,), match.warnings)


# The row asked about, by values of some columns. Law: a text is parsed as a value of the column's
# type, like `--param`; a TIMESTAMP has its zone. Columns without a value may have any.

RowGiven = Sequence[str] | Mapping[str, object]
"""Texts `NAME=VALUE,NAME=VALUE`, or Python values by name."""

_PART = re.compile(
    r"\s*(?P<name>`[^`]+`|[^=,'\s]+)\s*=\s*(?P<value>'(?:[^']|'')*'|[^,']*?)\s*(,|$)"
)
_START = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_FINITE = {
    "nan": math.nan,
    **dict.fromkeys(("infinity", "+infinity", "inf", "+inf"), math.inf),
    **dict.fromkeys(("-infinity", "-inf"), -math.inf),
}
"""As answers have them, and as Python does."""
_LIKE: Mapping[Kind, ParameterValue] = {
    **dict.fromkeys(INTEGRAL, 0),
    Kind.STRING: "",
    Kind.BOOLEAN: True,
    Kind.DECIMAL: Decimal(0),
    Kind.DATE: date(1970, 1, 1),
    Kind.TIMESTAMP: datetime(1970, 1, 1),
    Kind.TIMESTAMP_NTZ: datetime(1970, 1, 1),
}
"""How a parameter with such a value is written (`service.parameters`)."""


def condition_of_row(given: RowGiven, outputs: Sequence[p.Attribute]) -> Expr:
    """The condition on an answer's columns; UsageError for an invalid one."""
    values = _texts(given) if isinstance(given, Mapping) else _split(given)
    if not values:
        example = f"{outputs[0].name}=5" if outputs else "NAME=VALUE"
        raise UsageError(
            "`--row` names no row",
            hint=f"give values of columns, such as `--row {example}`",
            code="row_unread",
        )
    parts = [_equal(_column(name, outputs), text) for name, text in values.items()]
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _split(given: Sequence[str]) -> dict[str, str | None]:
    result: dict[str, str | None] = {}
    for text in given:
        position = 0
        while position < len(text):
            part = _PART.match(text, position)
            if part is None:
                raise UsageError(
                    f"`--row` cannot be read: {text}",
                    hint="write NAME=VALUE, separated by commas; quote a text that contains a "
                    "comma with single quotes",
                    code="row_unread",
                )
            name, value, position = part["name"].strip("`"), part["value"], part.end()
            if name in result:
                raise UsageError(
                    f"Column `{name}` is given twice", hint="give it once", code="row_unread"
                )
            is_quoted = value.startswith("'")
            plain = value[1:-1].replace("''", "'") if is_quoted else value
            result[name] = None if not is_quoted and value.upper() == "NULL" else plain
    return result


def _texts(given: Mapping[str, object]) -> dict[str, str | None]:
    result: dict[str, str | None] = {}
    for name, value in given.items():
        match value:
            case None:
                result[name] = None
            case str() | bool() | int() | float() | Decimal():
                result[name] = format(value, "f") if isinstance(value, Decimal) else str(value)
            case datetime() | date():
                result[name] = value.isoformat()
            case _:
                raise UsageError(
                    f"Column `{name}` cannot be {shortened(value)} ({type(value).__name__})",
                    hint="give a text, a number, a date or None",
                    code="row_unread",
                )
    return result


def _column(name: str, outputs: Sequence[p.Attribute]) -> p.Attribute:
    result = [output for output in outputs if output.name.lower() == name.lower()]
    if len(result) == 1:
        return result[0]
    if result:
        raise UsageError(
            f"The result has several columns `{name}`",
            hint="give the columns of the query different names with AS",
            code="row_unread",
        )
    names = [output.name for output in outputs]
    raise UsageError(
        f"The result has no column `{name}`",
        hint=suggestion(name, names, "it has") or f"it has {', '.join(names)}",
        code="row_unread",
    )


def _equal(column: p.Attribute, text: str | None) -> Expr:
    if text is None:
        return IsNull(column.ref())
    kind = column.type
    value = None if kind is None else _value(text, kind)
    if kind is None or value is None:
        raise UsageError(
            f"Column `{column.name}` has type `{kind or 'unknown'}`, but `{text}` is not "
            "such a value",
            hint="give a value of that type (for a timestamp with its zone, such as '2026-01-31 "
            "12:00:00Z'), NULL for none, or omit the column",
            code="row_unread",
        )
    return Compare(CompareOp.EQUAL, column.ref(), Literal(value, kind))


def _value(text: str, kind: SqlType) -> LiteralValue:
    like = _LIKE.get(kind.kind)
    if like is None:
        if not kind.is_fractional:
            return None
        number = parsed(text, 0.0)
        return _NOT_FINITE.get(text.lower(), number if isinstance(number, float) else None)
    result = parsed(text, like)
    match result:
        case datetime():
            has_zone = result.tzinfo is not None
            if has_zone != (kind.kind is Kind.TIMESTAMP):
                return None
            since = result - (_START if has_zone else _START.replace(tzinfo=None))
            return since // timedelta(microseconds=1)
        case date():
            return (result - _START.date()).days
        case Decimal():
            return result if result == round(result, kind.scale) else None
    return result


# Derivations by the engine. Law: reads what the query reads through its sketches, except rows that
# cannot affect the result row. All derivations survive, because a sketch holds the whole lineage; a
# sketch of witnesses does not and is not used. Reported are rows at the pinned versions, with the
# columns that the query reads.

_SHOWN = 3
"""Rows of an answer that are listed where several match."""


def _facts(result: ResolvedSketch, files: tuple[int, int], *, by: str = ENGINE) -> dict[str, Any]:
    """Fields of both results; `files` were read, of so many."""
    return {
        "query": result.prepared.spec.name,
        "versions": result.versions,
        "files_kept": files[0],
        "files_total": files[1],
        "elapsed_ms": 0.0,
        "action": result.action,
        "reason": result.reason,
        "moments": result.prepared.moments,
        "by": by,
    }


def derived_row(ctx: Context, result: ResolvedSketch, given: RowGiven) -> WhyResult:
    """The one row of the answer with these values, and what derives it. UsageError unless it is one
    row, QueryError where the query is not traced to rows; other errors as of `engine_answer`."""
    outputs = result.prepared.planned.root.attributes
    condition = condition_of_row(given, outputs)
    root = apply_rules(p.Select(result.prepared.query.root, condition))
    pruned = chosen_read(ctx.tables, result, SketchPolicy.ALWAYS).pruned
    try:
        with within_memory(ctx) as limit:
            tables = _Tables(ctx, result, root, pruned)
            derivations = made_rows(
                root, tables.of_accesses(), tables.rows, limit.check, limits=limits_of(ctx)
            )
    except BlockedError as blocked:
        raise _not_traced(result, blocked) from None
    (number, row) = only_row(result, ctx.session_zone, root, derivations)
    derivation = derivation_of(derivations.makings, number, tables.rows)
    return WhyResult(
        row=row,
        claim=str(derivation.claim),
        rows=tables.entries(derivation.rows),
        row_count=len(derivation.rows),
        lineage=derivation.lineage,
        limit=None,
        **_facts(result, (tables.files, pruned.files_total)),
    )


class _Tables:
    """The rows read of the tables, numbered."""

    def __init__(self, ctx: Context, result: ResolvedSketch, root: p.Plan, pruned: Pruned) -> None:
        snapshots = {
            scan.access: ctx.tables.snapshot(scan.table, result.versions.get(scan.table))
            for scan in root.scans
        }
        files = files_by_table(snapshots, wanted_files(root, snapshots, pruned.filters))
        self._scans = root.scans
        self._used = {
            sketch.access: sketch for sketch in result.sketches if sketch.access in pruned.filters
        }
        self._shown: dict[TableName, dict[ColumnName, None]] = {}
        for scan in (*result.prepared.root.scans, *self._scans):
            names = dict.fromkeys(a.name for a in scan.attributes)
            self._shown.setdefault(scan.table, {}).update(names)
        self._rows: dict[TableName, pa.Table] = {}
        self._starts: dict[TableName, int] = {}
        self.files = sum(map(len, files.values()))
        self.rows = 0
        by_table = {snapshot.table: snapshot for snapshot in snapshots.values()}
        for table, snapshot in by_table.items():
            columns = list(self._shown[table])
            columns += [used.attribute for used in self._used.values() if used.table == table]
            rows = read_rows(snapshot, list(dict.fromkeys(columns)), files[table])
            self._rows[table] = rows
            self._starts[table] = self.rows
            self.rows += len(rows)

    def of_accesses(self) -> dict[AccessId, pa.Table]:
        """The numbered rows of each access."""
        result = {}
        for scan in self._scans:
            rows = numbered(self._rows[scan.table], self._starts[scan.table])
            sketch = self._used.get(scan.access)
            if sketch is not None:
                values = from_arrow(rows.column(sketch.attribute), sketch.partition.type)
                mask = sketch.ranges.to_mask()[sketch.partition.range_ids_of(values)]
                rows = rows.filter(pa.array(mask))
            result[scan.access] = rows
        return result

    def entries(self, numbers: Sequence[int]) -> tuple[WhyEntry, ...]:
        result: dict[int, WhyEntry] = {}
        for table, rows in self._rows.items():
            start, names = self._starts[table], self._shown[table]
            inside = [number for number in numbers if start <= number < start + len(rows)]
            places = pa.array([number - start for number in inside], pa.int64())
            columns = rows_of(rows.select(list(names)).take(places))
            # Without columns there is nothing to tell rows by.
            values = columns if names else ((),) * len(inside)
            for number, row in zip(inside, values, strict=True):
                result[number] = WhyEntry(table, dict(zip(names, row, strict=True)))
        return tuple(result[number] for number in numbers)


def only_row(
    result: ResolvedSketch, zone: str, root: p.Plan, derivations: Made
) -> tuple[int, Mapping[ColumnName, RowValue]]:
    """The number of the only row, and the row."""
    names = [attribute.name for attribute in root.attributes]
    rows = rows_of(derivations.to_arrow(root.attributes, zone))
    if len(derivations.numbers) == 1:
        return int(derivations.numbers[0]), dict(zip(names, rows[0], strict=True)) if names else {}
    name = result.prepared.spec.name
    if not len(derivations.numbers):
        raise UsageError(
            f"The result of query `{name}` has no such row",
            hint="`impctl query` shows the rows; text must match exactly",
            code="row_not_there",
        )
    some = "; ".join(
        ", ".join(f"{column}={value!s}" for column, value in zip(names, row, strict=True))
        for row in rows[:_SHOWN]
    )
    raise UsageError(
        f"The result of query `{name}` has {len(derivations.numbers):,} different rows like this: "
        f"{some}{'; ...' if len(rows) > _SHOWN else ''}",
        hint="give values of more columns with `--row`",
        code="row_ambiguous",
    )


def _not_traced(result: ResolvedSketch, blocked: BlockedError) -> QueryError:
    return QueryError(
        f"impctl cannot trace a row of query `{result.prepared.spec.name}` to rows of its "
        f"tables: {blocked.message}",
        hint="the engine traces filters, inner joins, EXISTS, IN, UNION, DISTINCT, GROUP BY and "
        "WITH RECURSIVE; `--without` shows for other queries, too, which results disappear "
        "without some rows",
        code="not_traced",
        location=result.prepared.place(blocked.span),
    )


# What-if answers. Law: reports the difference of two answers at the same versions, copy for copy;
# no table is changed. A monotone query is read through its sketches, which hold the lineage of
# whatever is left. Any other uses its conditions alone, because deletions may add result rows.

_OF_TABLE = re.compile(r"\s*(?P<table>[\w.`-]+?)\s*:(?!:)\s*(?P<condition>.*)", re.DOTALL)
_OPTION = "--without"


def answer_without(ctx: Context, result: ResolvedSketch, texts: Sequence[str]) -> WithoutResult:
    """Changes of the answer if rows that satisfy one of these conditions were missing. Each is a
    condition on columns of the query's only table, or `TABLE: CONDITION`. UsageError for an invalid
    one, QueryError if the engine lacks a part of the plan; errors of values as of
    `engine_answer`."""
    prepared = result.prepared
    conditions, excluded = excluded_rows(ctx, prepared, texts)
    use = SketchPolicy.ALWAYS if is_monotone(prepared.root) else SketchPolicy.NEVER
    if use is SketchPolicy.ALWAYS:
        pruned = chosen_read(ctx.tables, result, use).pruned
    else:
        pruned = filters_of(ctx.tables, prepared, (), result.versions)
    try:
        with within_memory(ctx) as limit:
            arguments = (ctx, limit, prepared, pruned)
            before, after = engine_rows(*arguments), engine_rows(*arguments, excluded)
            changes = changes_between(before, after, ctx.session_zone)
    except BlockedError as blocked:
        hint = "run the query on Spark over `SELECT * FROM table WHERE NOT (condition)`"
        why = f", which `{_OPTION}` requires"
        raise engine_cannot(prepared, blocked, hint, why) from None
    removed = {table: rows.rows for table, rows in excluded.items()}
    facts = _facts(result, (pruned.files_kept, pruned.files_total))
    return WithoutResult(answer=changes, without=conditions, removed=removed, **facts)


_MONOTONE = (p.Scan, p.Select, p.Project, p.Sort, p.Distinct, p.Fixpoint, p.Recursive)


def is_monotone(root: p.Plan) -> bool:
    """Whether no input row ever suppresses or changes a row of the answer."""
    return all(
        isinstance(node, _MONOTONE)
        or (isinstance(node, p.Join) and node.kind in (p.JoinKind.INNER, p.JoinKind.SEMI))
        or (isinstance(node, p.SetOperation) and node.kind is p.SetKind.UNION)
        for node in root.walk()
    )


def excluded_rows(
    ctx: Context, prepared: PreparedQuery, texts: Sequence[str]
) -> tuple[dict[TableName, tuple[str, ...]], dict[TableName, ExcludedRows]]:
    """The conditions by table, and the rows for which one of a table's is true."""
    names = {table.lower(): table for table in prepared.tables}
    result: dict[TableName, tuple[str, ...]] = {}
    for text in texts:
        match = _OF_TABLE.fullmatch(text)
        if match is not None:
            written = match["table"].replace("`", "")
            table = names.get(written.lower())
            if table is None:
                raise UsageError(
                    f"Query `{prepared.spec.name}` reads no table `{written}`",
                    hint=suggestion(written, prepared.tables, "it reads"),
                    code="without_table",
                )
            text = match["condition"]
        elif len(names) == 1:
            (table,) = names.values()
        else:
            listed = ", ".join(f"`{name}`" for name in prepared.tables)
            raise UsageError(
                f"`{_OPTION}` does not name the table of its rows: {text}",
                hint=f'write `{_OPTION} "TABLE: CONDITION"`; the query reads {listed}',
                code="without_table",
            )
        result[table] = (*result.get(table, ()), text)
    excluded = {}
    for table, conditions in result.items():
        columns: Sequence[Column] = ctx.tables.snapshot(table).schema.columns
        attributes = [p.Attribute(column.name, column.name, column.type) for column in columns]
        zone = ctx.session_zone
        parts = tuple(condition_on(attributes, c, zone, _OPTION, "the table") for c in conditions)
        condition = parts[0] if len(parts) == 1 else Or(parts)
        read: dict[ColumnName, Column] = {column.name: column for column in columns}
        used = tuple(read[name] for name in sorted(condition.columns))
        excluded[table] = ExcludedRows(condition, used)
    return result, excluded


# State of a recursion kept by absorption. Law: used only at the very commit that the query was
# maintained to, and only if the query reads tables through that recursion alone; else tables are
# read.


def absorbed_rows(ctx: Context, result: ResolvedSketch, root: p.Plan) -> AbsorbedRows | None:
    """The recursion of a plan, with its state; None unless it has the whole lineage."""
    spec, store = result.prepared.spec, ctx.reading_store()
    if spec.provenance is None or store is None or not result.sketches or result.reuse is not None:
        return None
    # All tables have to be read below one fixpoint.
    fixpoints = [node for node in root.walk() if isinstance(node, p.Fixpoint)]
    if len(fixpoints) != 1 or len(root.scans) != len(fixpoints[0].scans):
        return None
    stored = store.load(spec.name)
    if stored is None or dict(stored.versions) != dict(result.versions):
        return None
    if not StateMeta.read(stored.query, stored.state_meta).provenance:
        return None
    again = reopened(ctx, spec, stored)
    compiled = again.plan.compiled
    core = again.prepared.core if again.plan.core is None else again.plan.core
    if compiled is None or len(compiled.absorbed) != 1 or fixpoints[0] not in [*core.walk()]:
        return None
    QueryState(again.plan, stored, store.load_runs(spec.name))  # Restores the circuit's state.
    now = store.load(spec.name)
    if now is None or now.generation != stored.generation:
        return None
    (absorbed,) = compiled.absorbed
    return absorbed


# Derivations by state. Law: claims are proved as when tables are read
# (`compile.provenance.derivation`); if whole functions are kept, the row's function gives a
# smallest set. Each distinct row is reported once, with the columns in the state, which are all
# that the recursion reads.


def row_from_state(ctx: Context, result: ResolvedSketch, given: RowGiven) -> WhyResult | None:
    """As `derived_row`; None where the state is not enough."""
    root = result.prepared.planned.root
    absorbed = absorbed_rows(ctx, result, root)
    state = None if absorbed is None else known_rows(absorbed)
    if absorbed is None or state is None:
        return None
    selection = p.Select(root, condition_of_row(given, root.attributes))
    try:
        with within_memory(ctx) as limit:
            traced = made_rows(selection, {}, state.first, limit.check, state, limits_of(ctx))
    except BlockedError:
        # What is above is not traced: the other way reports its place.
        return None
    number, row = only_row(result, ctx.session_zone, selection, traced)
    absorbs, smallest = absorbed.operator.absorbs, None
    if absorbs.ship is Shipping.EAGER:
        smallest = partial(smallest_by_functions, first=state.first, absorbs=absorbs)
    derivation = derivation_of(traced.makings, number, state.first, smallest=smallest)
    entries, copies = dict[int, WhyEntry](), dict[int, int]()
    for table, leaves in state.tables.items():
        copies.update(zip(leaves.numbers, leaves.copies, strict=True))
        for leaf, values in zip(leaves.numbers, rows_of(leaves.rows), strict=True):
            entries[leaf] = WhyEntry(table, dict(zip(leaves.columns, values, strict=True)))
    reached = RowLineage(traced.makings, number, state.first).leaves.tolist()
    return WhyResult(
        row=row,
        claim=str(derivation.claim),
        # Each distinct row is reported once.
        rows=tuple(entries[leaf] for leaf in derivation.rows),
        row_count=len(derivation.rows),
        lineage=sum(copies[leaf] for leaf in reached),
        limit=None,
        **_facts(result, (0, files_in(ctx.tables, result.versions)), by=STATE),
    )


# What-if answers by state. Law: reports the difference between the answers over the recursion's
# rows and over those that the functions keep (`engine.fixpoint.absorption`), copy for copy; above
# the recursion may be anything that the engine runs. No table is read, so conditions use columns in
# the state.

_MADE = "made"


def without_from_state(
    ctx: Context, result: ResolvedSketch, texts: Sequence[str]
) -> WithoutResult | None:
    """As `answer_without`; None where the state is not enough."""
    answer: AnswerPlan = ctx.memory.answer(result.prepared.planned)
    absorbed = absorbed_rows(ctx, result, answer.kept)
    if absorbed is None:
        return None
    conditions, excluded = excluded_rows(ctx, result.prepared, texts)
    leaves = _leaves(absorbed, excluded)
    if leaves is None:
        return None
    try:
        before, after = (
            _answered(absorbed, answer, rows) for rows in rows_without(absorbed, leaves)
        )
    except BlockedError:
        # The other way reports its place.
        return None
    changes = changes_between(before, after, ctx.session_zone)
    removed = {table: rows.rows for table, rows in excluded.items()}
    facts = _facts(result, (0, files_in(ctx.tables, result.versions)), by=STATE)
    return WithoutResult(answer=changes, without=conditions, removed=removed, **facts)


def _leaves(absorbed: AbsorbedRows, excluded: Mapping[TableName, ExcludedRows]) -> list[int] | None:
    """The numbers of the removed leaves; None if the state does not tell. Counts for each table the
    rows of the access that has most of them."""
    result: list[int] = []
    most = dict.fromkeys(excluded, 0)
    for index, (of, ingredient) in enumerate(
        zip(absorbed.of, absorbed.operator.ingredients, strict=True)
    ):
        if of is None and ingredient.is_leaf:
            return None
        if of is None or of.table not in excluded:
            continue
        out = excluded[of.table]
        if not set(out.columns) <= set(of.columns):
            return None
        rows, numbers, copies = leaves_of(absorbed, index)
        if not len(rows):
            continue
        is_excluded = out.excludes(rows).tolist()
        result += compress(numbers, is_excluded)
        most[of.table] = max(most[of.table], sum(compress(copies, is_excluded)))
    for table, count in most.items():
        excluded[table].rows = count
    return result


def _answered(absorbed: AbsorbedRows, answer: AnswerPlan, rows: Batch) -> RowsOf:
    """The stored form of the answer over some of the recursion's rows."""
    compiled = compile_answer(replace(answer, kept=_over_rows(answer.kept, absorbed)))
    compiled.circuit.start()
    if len(rows):
        compiled.circuit.step(rows)
    return RowsOf.kept(answer.ending, compiled.kept)


def _over_rows(plan: p.Plan, absorbed: AbsorbedRows) -> p.Plan:
    """The plan that reads the recursion's rows as those of a table."""
    if isinstance(plan, p.Fixpoint) and plan.id == absorbed.fixpoint:
        return p.Scan(_MADE, _MADE, plan.attributes, span=plan.span)
    return plan.map_inputs(lambda child: _over_rows(child, absorbed))

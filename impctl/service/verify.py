"""Verify: recapture in Spark at the stored versions and compare."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from impctl.errors import EvaluationError, ImpctlError, RetryableError
from impctl.expr.nodes import ColumnRef, Expr
from impctl.plan.nodes import Plan, Project, TopK
from impctl.plan.properties import order_dependent_columns
from impctl.rules.error_columns import with_rounding
from impctl.service.answer import answer_table
from impctl.service.capture import captured_query
from impctl.service.context import Context, Versions, collect_results
from impctl.service.fill import needed
from impctl.service.filters import filters_of
from impctl.service.maintenance_plan import restored_query
from impctl.service.prepare import PreparedQuery, prepare
from impctl.service.query import materialized_result
from impctl.service.results import (
    SKETCH_NONE_REASON,
    VERIFIED,
    VERIFY,
    Outcome,
    RowValue,
    VerifyResult,
    rows_of,
)
from impctl.service.stored import check_definition, known_ending, stored_moments
from impctl.sketch.sketch import compare
from impctl.spark.render import render_plan
from impctl.stopwatch import Stopwatch
from impctl.store.records import RunRecord, StoredQuery

if TYPE_CHECKING:
    from impctl.types import QueryName
    from impctl.workload.models import QuerySpec


# Law: the oracle shares only the partition with the maintained state. A sketch without a range of
# the accurate one is unsound (exit 5); one with more has slack. A sketch of one derivation per row
# of a fixpoint has no accurate counterpart: it is unsound if rows derived over it are not all rows,
# and its slack is ranges that no derivation uses. With results, the answers with and without the
# sketch, and the materialized one, are compared as bags; of a LIMIT without ORDER BY only the
# number of rows. A query that fails only through its sketch has nothing to compare. Both cases are
# reported. The finding is recorded for `status` if the store is writable.

_FAILS_IN_PART = (
    "query `{}` fails on groups that its sketch covers only in part, so it is answered "
    "without its sketch, and there is no result with it to compare"
)


def verify(ctx: Context, queries: Sequence[QueryName] | None, *, results: bool = False) -> Outcome:
    """One result per stored sketch; results_equal only where `results` asks for it."""
    warnings: list[str] = []
    specs = ctx.sketched(queries)

    def verify_query(spec: QuerySpec) -> Iterator[VerifyResult]:
        ctx.reporter.step(f"verifying {spec.name}", specs.index(spec) + 1, len(specs))
        watch, started_at = Stopwatch(), time.time()
        verified = _verify_sketches(ctx, spec, results)
        yield from verified
        if results and any(result.results_equal is None for result in verified):
            warnings.append(_FAILS_IN_PART.format(spec.name))
        warnings.extend(_record(ctx, spec, verified, started_at, watch.ms))

    outcome = collect_results(specs, verify_query)
    names = [f"`{spec.name}`" for spec in ctx.queries(queries) if not spec.is_sketched]
    if names:
        verb = "is" if len(names) == 1 else "are"
        warnings.append(f"{', '.join(names)} {verb} not verified: {SKETCH_NONE_REASON}")
    return replace(outcome, warnings=tuple(warnings))


def _record(
    ctx: Context, spec: QuerySpec, verified: Sequence[VerifyResult], started_at: float, took: float
) -> list[str]:
    """Record the result; a store that is locked or read-only is no failure."""
    if not verified:
        return []
    slack = sum(result.slack for result in verified)
    is_sound = all(result.is_sound for result in verified)
    record = RunRecord(
        action=VERIFY,
        reason_code=VERIFIED if is_sound else "sketch_unsound",
        reason=f"slack {slack}" if is_sound else "the sketch or its results were wrong",
        started_at=started_at,
        elapsed_ms=took,
        added=slack,
        removed=sum(len(result.missing) for result in verified),
        versions=verified[0].versions,
    )
    try:
        ctx.store().add_record(spec.name, record)
    except RetryableError as error:
        return [f"the verification of `{spec.name}` was not recorded: {error.message}"]
    return []


def _verify_sketches(ctx: Context, spec: QuerySpec, results: bool) -> list[VerifyResult]:
    stored = captured_query(ctx, ctx.reading_store(), spec)
    check_definition(ctx, spec, stored)
    prepared = prepare(ctx, spec, stored_moments(stored))
    query = restored_query(ctx.tables, prepared, stored)
    ctx.spark()
    ctx.reporter.step(f"recapturing {spec.name}")
    ranges = {sketch.access: sketch.ranges for sketch in stored.sketches}
    accurate = needed(ctx, query, ranges, stored.versions)
    equal, counts_only, kept_equal = None, False, None
    if results:
        equal, counts_only, kept_equal = _results_equal(ctx, prepared, stored)
    verified = []
    for sketch in stored.sketches:
        relation = compare(sketch.ranges, accurate[sketch.access])
        verified.append(
            VerifyResult(
                query=spec.name,
                table=sketch.table,
                attribute=sketch.attribute,
                total=sketch.partition.ranges,
                covers=relation.covers,
                slack=relation.slack,
                missing=relation.missing,
                extra=relation.extra,
                results_equal=equal,
                versions=stored.versions,
                moments=prepared.moments,
                counts_only=counts_only,
                answer_equal=kept_equal,
            )
        )
    return verified


def _results_equal(
    ctx: Context, prepared: PreparedQuery, stored: StoredQuery
) -> tuple[bool | None, bool, bool | None]:
    """Whether the answers are equal, whether only row counts could be compared, and whether the
    materialized result is equal (None without one). None where the query fails through its sketch
    alone, which nobody then uses."""
    ctx.reporter.step(f"running {prepared.spec.name} with and without its sketch")
    pruned = filters_of(ctx.tables, prepared, stored.sketches, stored.versions)
    without = rows_of(answer_table(ctx, prepared, stored.versions))
    try:
        with_sketch = rows_of(answer_table(ctx, prepared, stored.versions, pruned))
    except EvaluationError:
        with_sketch = None
    materialized = _materialized(ctx, prepared, stored)
    if len(without) == prepared.query.cut:
        # Any rows are right, once there are more than the LIMIT leaves.
        result = [None if rows is None else len(rows) for rows in (with_sketch, materialized)]
        equal, is_kept = (None if n is None else n == len(without) for n in result)
        return equal, True, is_kept
    loose = order_dependent_columns(prepared.query.root)
    cut = None if loose else cut_order(prepared.query.root)

    @cache
    def rounded() -> Rounded | None:
        return rounded_answer(ctx, prepared, stored.versions)

    def is_same(result: Rows | None) -> bool | None:
        if result is None:
            return None
        if same_rows(_without(result, loose), _without(without, loose)):
            return True
        if cut is not None and cut.are_both_right(result, without):
            return True
        # Sums that cancel: Spark says what they were made of.
        by_spark = rounded()
        if by_spark is None:
            return False
        rows, errors = by_spark
        return same_rows(
            _without(result, loose), _without(rows, loose), errors=_without(errors, loose)
        )

    return is_same(with_sketch), False, is_same(materialized)


def _materialized(ctx: Context, prepared: PreparedQuery, stored: StoredQuery) -> Rows | None:
    store = ctx.reading_store()
    if store is None or not stored.state_meta.get("answer"):
        return None
    # Read as `query` reads it, where nothing moved since.
    ending, plan = known_ending(ctx.tables, stored), None
    if ending is None:
        plan = ctx.memory.answer(prepared.planned)
        ending = plan.ending
    table = materialized_result(ctx, store, stored.query, ending, stored.generation, plan=plan)
    return None if table is None else rows_of(table)


_Cell = TypeVar("_Cell")


def _without(
    rows: Sequence[Sequence[_Cell]], columns: Collection[int]
) -> Sequence[Sequence[_Cell]]:
    """The rows without the columns of which two runs need not agree."""
    if not columns:
        return rows
    return [[value for index, value in enumerate(row) if index not in columns] for row in rows]


# Ties at a LIMIT or OFFSET. Law: where it cuts between tied rows, any of them are right. Equal are
# then the lists of sort values, and the bags of rows that do not tie at the cut. This needs all
# sort values in the output; else the rows must be equal.

Rows = Sequence[Sequence[RowValue]]


class CutOrder(Struct, frozen=True):
    """Output columns of ORDER BY by position, and where rows are cut off."""

    places: tuple[int, ...]
    count: int
    has_offset: bool

    def are_both_right(self, left: Rows, right: Rows) -> bool:
        """Whether two answers, each in its order, differ only in rows that tie at a cut."""
        if len(left) != len(right) or len(left) < self.count:
            return False
        if not same_rows(self._keys(left), self._keys(right)):
            return False
        return same_rows(self._inside(left), self._inside(right))

    def _keys(self, rows: Rows) -> Rows:
        return [[row[position] for position in self.places] for row in rows]

    def _inside(self, rows: Rows) -> Rows:
        keys = self._keys(rows)
        edges = [keys[-1], keys[0]] if self.has_offset else [keys[-1]]
        return [
            row
            for row, key in zip(rows, keys, strict=True)
            if not any(same_rows([key], [edge]) for edge in edges)
        ]


def cut_order(root: Plan) -> CutOrder | None:
    shown: list[Expr] = [attribute.ref() for attribute in root.attributes]
    node = root
    while isinstance(node, Project):
        below = {output.attribute.id: output.expr for output in node.outputs}
        shown = [
            below.get(part.id, part) if isinstance(part, ColumnRef) else part for part in shown
        ]
        node = node.child
    if not isinstance(node, TopK) or node.rank is not None or not node.count or not node.order:
        return None
    if any(key.expr not in shown for key in node.order):
        return None
    places = tuple(shown.index(key.expr) for key in node.order)
    return CutOrder(places, node.count, bool(node.offset))


# Law: answers are compared as bags. Doubles may differ by what the order of a floating-point sum
# can change: a small relative error, or the known error of the value, which matters where a sum
# cancels (`rules.error_columns`).

_RELATIVE = 1e-9
"""Doubles closer than this count as equal: two orders of a sum of values of one sign never differ
by more in practice, and a wrong group differs by far more."""

_ABSOLUTE = 1e-12
"""Residue of a sum that cancels to nothing."""

_Double = tuple[float, float]
"""A double, and its further error."""


def same_rows(
    left: Sequence[Sequence[RowValue]],
    right: Sequence[Sequence[RowValue]],
    *,
    errors: Sequence[Sequence[float]] | None = None,
) -> bool:
    """Whether two results are one bag, doubles compared with a tolerance. `errors`: for each row of
    the right, how far each of its cells may be off (0 where not known)."""
    if len(left) != len(right):
        return False
    left_rows, right_rows = _by_exact_part(left), _by_exact_part(right, errors)
    if left_rows.keys() != right_rows.keys():
        return False
    return all(_same_doubles(left_rows[part], right_rows[part]) for part in left_rows)


def _by_exact_part(
    rows: Sequence[Sequence[RowValue]], errors: Sequence[Sequence[float]] | None = None
) -> dict[tuple[str, ...], list[tuple[_Double, ...]]]:
    """Doubles of rows grouped by their other values."""
    result: dict[tuple[str, ...], list[tuple[_Double, ...]]] = {}
    for index, row in enumerate(rows):
        part = tuple(
            "double"
            if isinstance(cell, float)
            else f"decimal {cell.as_integer_ratio()}"
            if isinstance(cell, Decimal) and cell.is_finite()
            else repr(cell)
            for cell in row
        )
        off = [0.0] * len(row) if errors is None else errors[index]
        doubles = tuple(
            (cell, error) for cell, error in zip(row, off, strict=True) if isinstance(cell, float)
        )
        result.setdefault(part, []).append(doubles)
    return result


def _same_doubles(left: list[tuple[_Double, ...]], right: list[tuple[_Double, ...]]) -> bool:
    if len(left) != len(right):
        return False
    pairs = zip(sorted(left, key=_numeric), sorted(right, key=_numeric), strict=True)
    if all(_close_rows(left_row, right_row) for left_row, right_row in pairs):
        return True
    # Near ties in one column may order the next one differently: look for partners one by one.
    open_rows = list(right)
    for row in left:
        partner = next((other for other in open_rows if _close_rows(row, other)), None)
        if partner is None:
            return False
        open_rows.remove(partner)
    return True


def _numeric(row: tuple[_Double, ...]) -> tuple[tuple[bool, float], ...]:
    return tuple((math.isnan(value), 0.0 if math.isnan(value) else value) for value, _ in row)


def _close_rows(left: tuple[_Double, ...], right: tuple[_Double, ...]) -> bool:
    return all(_close(value, *other) for (value, _), other in zip(left, right, strict=True))


def _close(left: float, right: float, error: float) -> bool:
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    tolerance = max(_ABSOLUTE, error)
    return math.isclose(left, right, rel_tol=_RELATIVE, abs_tol=tolerance)


# Error bounds are those of `rules.error_columns` for the query's plan. Spark computes them from the
# tables, so that wrong state cannot widen them.

Rounded = tuple[list[tuple[RowValue, ...]], list[tuple[float, ...]]]


def rounded_answer(ctx: Context, prepared: PreparedQuery, versions: Versions) -> Rounded | None:
    """Rows, and for each of their cells its largest error; None if unknown."""
    from impctl.spark.run import run_sql
    from impctl.spark.snapshots import snapshot_frame

    bounded = with_rounding(prepared.query.root)
    if bounded is None:
        return None
    plan, inexact = bounded
    names, frames = {}, {}
    for number, scan in enumerate(plan.scans):
        name = names[scan.access] = f"impctl_view{number}"
        columns = [attribute.name for attribute in scan.attributes]
        snapshot = ctx.tables.snapshot(scan.table, versions.get(scan.table))
        frames[name] = snapshot_frame(ctx.spark(), snapshot, columns)
    try:
        table = run_sql(ctx.spark(), render_plan(plan, names), frames, versions=versions)
    except ImpctlError:
        # It computes more than the query, and may not be written in Spark's SQL as a whole.
        return None
    shown = len(prepared.query.root.attributes)
    rows, errors = [], []
    for row in rows_of(table):
        off = [0.0] * shown
        for position, error in zip(inexact, row[shown:], strict=True):
            off[position] = error if isinstance(error, float) and not math.isnan(error) else 0.0
        rows.append(row[:shown])
        errors.append(tuple(off))
    return rows, errors

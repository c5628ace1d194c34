"""Read the materialized result of a query without planning it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from impctl.compile.answers import answer_of_rows, kept_rows, looked_up_key
from impctl.errors import ImpctlError
from impctl.service.maintain import NO_NEW_VERSION, has_nothing_to_do
from impctl.service.results import QueryResult
from impctl.service.stored import catch_up, known_ending, stored_moments, stored_query
from impctl.stopwatch import Stopwatch
from impctl.workload.models import AnsweredBy

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.engine.result_rows import AnswerRows
    from impctl.expr.nodes import Expr
    from impctl.rules.finalize import AnswerPlan, FinalSteps
    from impctl.service.context import Context
    from impctl.store.reader import StoreReader
    from impctl.types import QueryName


# Law: returns only rows of the very commit that the query was maintained to. If the store has moved
# on there is none, and the caller maintains again.

KEPT = "from the materialized result"
"""Why its reader is quickest."""


def materialized_result(
    ctx: Context,
    store: StoreReader,
    query: QueryName,
    ending: FinalSteps,
    generation: int,
    where: Expr | None = None,
    plan: AnswerPlan | None = None,
) -> pa.Table | None:
    """The answer as of this commit; None if the store has another one by now. `where` is a
    condition on its columns; if it selects one key, other rows are not read. `plan` is that of the
    rows; without it they must be stored as they are (`service.stored`)."""
    stored = store.load(query)
    if stored is None or stored.generation != generation:
        return None
    rows: AnswerRows = kept_rows(ending)
    if plan is not None and stored.state_meta.get("trees"):
        # If rows are stored as they are, the planner is not loaded.
        from impctl.compile.compile import compile_answer

        planned_rows = compile_answer(plan, {}).kept
        assert planned_rows is not None
        rows = planned_rows
    runs = store.load_runs(query, rows.beginning)
    now = store.load(query)
    if now is None or now.generation != generation:
        return None
    rows.load(runs, None if where is None else looked_up_key(ending, rows, where))
    return answer_of_rows(ending, rows.whole(), ctx.session_zone, where)


# An unchanged query's materialized result, without reading SQL. Law: returned only if `maintain`
# would have nothing to do, and only as this very program recorded beside the state
# (`service.stored`). Any obstacle, damage included, is left to those who read the query and can
# report it.


def read_without_plan(
    ctx: Context, query: QueryName | None, condition: str | None = None
) -> QueryResult | None:
    """The answer, or its rows for which a condition on its columns is true. None if there is none,
    or something has to be done or reported first."""
    from impctl.service.cost_model import is_slow_state_read, record_state_read

    spec = ctx.query(query)
    store = ctx.reading_store()
    if store is None or not spec.answer or not spec.is_sketched:
        return None
    try:
        if condition is None and is_slow_state_read(ctx, store, spec):
            # To know whether the engine or Spark is quicker, the query must be read.
            return None
        stored = stored_query(ctx, store, spec)
        catch_up(ctx.tables, stored)
        ending = known_ending(ctx.tables, stored)
        if ending is None or not has_nothing_to_do(ctx, spec, stored, for_use=True):
            return None
        watch = Stopwatch()
        where = None
        if condition is not None:
            # Only a condition needs the SQL parser.
            from impctl.service.resolve import condition_on

            outputs = [output.attribute for output in ending.outputs]
            where = condition_on(outputs, condition, ctx.session_zone)
        table = materialized_result(ctx, store, spec.name, ending, stored.generation, where)
    except ImpctlError:
        return None
    if table is None:
        return None
    ctx.count_answer(spec.name)
    elapsed_ms = watch.ms
    if condition is None:
        record_state_read(ctx, store, spec, table, elapsed_ms)
    return QueryResult(
        query=spec.name,
        answer=table,
        versions=stored.versions,
        files_kept=0,
        files_total=0,
        elapsed_ms=elapsed_ms,
        reason=NO_NEW_VERSION,
        moments=stored_moments(stored),
        by=AnsweredBy.STATE,
        by_reason=KEPT,
    )

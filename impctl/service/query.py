"""Query: run a query through its sketch, by whoever answers it fastest."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from impctl.compile.answers import answer_of_rows, answer_where, kept_rows, looked_up_key
from impctl.compile.flows import BlockedError
from impctl.errors import (
    EvaluationError,
    ImpctlError,
    JoinTooLargeError,
    NotExactError,
    OutOfMemoryError,
    RecaptureNeededError,
    TableError,
    UnsupportedError,
    UsageError,
)
from impctl.service.cost_model import (
    SLOW_STATE_MS,
    AnswerEstimate,
    EngineChoice,
    answer_runs,
    compare_engines,
    is_slow_state_read,
    record_answer,
    record_state_read,
    rows_of,
    state_estimate,
)
from impctl.service.formats import check_goal, shown
from impctl.service.maintain import NO_NEW_VERSION, has_nothing_to_do
from impctl.service.results import AnsweredEntry, Outcome, QueryResult
from impctl.service.settings import QueryRequest
from impctl.service.stored import (
    catch_up,
    is_captured_alike,
    known_ending,
    stored_moments,
    stored_query,
)
from impctl.service.text import named_before
from impctl.stopwatch import Stopwatch
from impctl.workload.models import AnsweredBy, Policy, QuerySpec, SketchPolicy

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.engine.result_rows import AnswerRows
    from impctl.expr.nodes import Expr
    from impctl.rules.finalize import AnswerPlan, FinalSteps
    from impctl.service.answer import Passthrough
    from impctl.service.context import Context
    from impctl.service.prepare import PreparedQuery
    from impctl.service.resolve import ReadChoice, ResolvedSketch
    from impctl.store.reader import StoreReader
    from impctl.types import QueryName


# Law: the answer is the query's at the pinned versions; the sketch only decides what is read.


def query(
    ctx: Context,
    request: QueryRequest,
    by: AnsweredBy = AnsweredBy.AUTO,
    *,
    where: str | None = None,
    limit: int | None = None,
    out: Path | None = None,
    escape_formulas: bool = False,
) -> Outcome:
    """The answer of one query; a stale sketch is maintained first. `by`: materialized result,
    engine or Spark; default: the fastest that can. `where` selects rows by their columns. `limit`
    bounds the rows shown, or written to the file `out`, with `escape_formulas` so that spreadsheets
    compute nothing."""
    if out is not None:
        # Before anything that takes its time.
        check_goal(out, ctx.reserved)
    use = request.sketch
    if request == QueryRequest(request.query) and by in (AnsweredBy.AUTO, AnsweredBy.STATE):
        known = read_without_plan(ctx, request.query, where)
        if known is not None:
            return Outcome((shown(known, limit, out, escape_formulas=escape_formulas),))
    # Planner and engine take longer to load than the materialized result takes to read.
    from impctl.service.answer import Passthrough
    from impctl.service.resolve import reporting_lost_versions, resolved

    match = resolved(ctx, request)
    if isinstance(match, Passthrough):
        if by in (AnsweredBy.STATE, AnsweredBy.ENGINE) or where is not None:
            raise match.refusal
        result, warnings = _verbatim(ctx, match), match.warnings
    else:
        with nullcontext() if request.at is None else reporting_lost_versions():
            result, warnings = _answer(ctx, match, use, by, where)
    return Outcome((shown(result, limit, out, escape_formulas=escape_formulas),), warnings)


# The materialized result. Law: returns only rows of the very commit that the query was maintained
# to. If the store has moved on there is none, and the caller maintains again.


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

        planned_rows = compile_answer(plan, has_trees=True).kept
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
            from impctl.service.parameters import condition_on

            outputs = [output.attribute for output in ending.outputs]
            where = condition_on(outputs, condition, ctx.session_zone)
        table = materialized_result(ctx, store, spec.name, ending, stored.generation, where)
    except ImpctlError:
        return None
    if table is None:
        return None
    facts = {"reason": NO_NEW_VERSION, "moments": stored_moments(stored)}
    is_whole = condition is None
    return _from_rows(
        ctx, spec, table, watch.ms, is_whole=is_whole, versions=stored.versions, **facts
    )


def _from_rows(
    ctx: Context, spec: QuerySpec, table: pa.Table, took: float, *, is_whole: bool, **facts: Any
) -> QueryResult:
    """The materialized result, `is_whole` without a condition; records what reading it took."""
    ctx.count_answer(spec.name)
    store = ctx.reading_store()
    if is_whole and store is not None:
        record_state_read(ctx, store, spec, table, took)
    return QueryResult(
        query=spec.name,
        answer=table,
        files_kept=0,
        files_total=0,
        elapsed_ms=took,
        by=AnsweredBy.STATE,
        by_reason="from the materialized result",
        **facts,
    )


# Who answers. Law: every way gives the query's answer at the pinned versions. Materialized rows
# come first, because they are cheapest, unless recorded runs say that reading tables is faster;
# else the engine, as far as it can, or Spark, by the cost model. Spark decides where the engine
# cannot compute a value or fails; the engine requested by name reports that instead. A query that
# fails through its sketch is read without it. Damaged materialized rows are never returned: they
# are read again through the sketch, with a warning, unless the policy is `strict`.

_ATTEMPTS = 10
"""Retries when other processes maintain an answer while it is read."""


def _answer(
    ctx: Context,
    result: ResolvedSketch,
    use: SketchPolicy,
    by: AnsweredBy,
    condition: str | None = None,
) -> tuple[QueryResult, tuple[str, ...]]:
    """The answer of a query, and warnings; UsageError or QueryError where `by` cannot give it.
    Without the materialized result if the sketch is requested. `condition` selects rows by output
    columns."""
    from impctl.service.parameters import condition_on
    from impctl.service.resolve import chosen_read

    where = None
    if condition is not None:
        where = condition_on(result.prepared.planned.root.attributes, condition, ctx.session_zone)
    is_read = by is AnsweredBy.AUTO and use is SketchPolicy.ALWAYS
    if by is AnsweredBy.AUTO and not is_read and where is None:
        is_read = _is_state_slower(ctx, result, use)
    if by in (AnsweredBy.AUTO, AnsweredBy.STATE) and not is_read:
        try:
            answer = _from_state(ctx, result, where)
        except (EvaluationError, RecaptureNeededError) as error:
            if by is AnsweredBy.STATE:
                raise
            answer, result = None, _without_state(ctx, result, error)
        if answer is not None:
            return answer
        if by is AnsweredBy.STATE:
            if result.refusal is not None:
                raise result.refusal
            spec = result.prepared.spec
            hint = "omit `--by`, or write `answer: true` under the query and capture it"
            if spec.answer:
                hint = "`impctl explain` shows why its result is not materialized; omit `--by`"
            message = f"The result of query `{spec.name}` is not materialized"
            raise UsageError(message, hint=hint, code="answer_not_kept")
    read = chosen_read(ctx.tables, result, use)
    try:
        return _by_reading(ctx, result, read, by, where), result.warnings
    except EvaluationError as error:
        if not read.pruned.filters:
            raise
        # The sketch may show part of a group that a condition or LIMIT drops, and a value computed
        # from the part, such as a quotient, may fail where that of the group does not.
        warning = (
            f"the sketch of query `{result.prepared.spec.name}` was not used: the query fails on "
            f"groups that it reads only in part: {error.message}"
        )
        result = replace(result, sketches=(), warnings=(*result.warnings, warning))
    read = chosen_read(ctx.tables, result, SketchPolicy.NEVER)
    return _by_reading(ctx, result, read, by, where), result.warnings


def who_answers(ctx: Context, prepared: PreparedQuery) -> AnsweredEntry | None:
    """Who would answer the query now by default, and why; None if unknown. Maintains nothing."""
    from impctl.compile.compile import compile_answer
    from impctl.service.resolve import read_choice

    try:
        store = ctx.reading_store()
        stored = None if store is None else store.load(prepared.spec.name)
        if stored is not None and not is_captured_alike(ctx, prepared.spec, stored):
            stored = None
        sketches, versions = ((), {}) if stored is None else (stored.sketches, stored.versions)
        read = read_choice(ctx.tables, prepared, sketches, versions)
        expected = compare_engines(ctx, prepared, read.pruned)
        spark_ms = round(expected.spark.ms)
        try:
            compile_answer(ctx.memory.answer(prepared.planned))
        except (BlockedError, UnsupportedError) as blocked:
            why = _not_by_engine(prepared, blocked)
            return AnsweredEntry(str(AnsweredBy.SPARK), why, None, spark_ms)
        by, why = AnsweredBy.ENGINE if expected.is_engine else AnsweredBy.SPARK, expected.why
        if stored is not None and stored.state_meta.get("answer"):
            state = state_estimate(answer_runs(ctx, prepared.spec))
            if not _is_slower(state, expected):
                by, why = AnsweredBy.STATE, f"without it, {why}"
        return AnsweredEntry(str(by), why, round(expected.engine.ms), spark_ms)
    except ImpctlError:
        return None


def _not_by_engine(prepared: PreparedQuery, blocked: ImpctlError) -> str:
    """Why the engine cannot run the query, with the place in the file if there is one."""
    location = prepared.place(blocked.span) if isinstance(blocked, BlockedError) else None
    where = "" if location is None else f" ({location})"
    return f"the engine cannot run it: {blocked.message}{where}"


def _is_state_slower(ctx: Context, result: ResolvedSketch, use: SketchPolicy) -> bool:
    """Whether the materialized result is slower than engine or Spark, by recorded runs."""
    from impctl.service.resolve import chosen_read

    store, spec = ctx.reading_store(), result.prepared.spec
    if result.generation is None or store is None or not is_slow_state_read(ctx, store, spec):
        return False
    state = state_estimate(answer_runs(ctx, spec))
    read = chosen_read(ctx.tables, result, use)
    return _is_slower(state, compare_engines(ctx, result.prepared, read.pruned))


def _is_slower(state: AnswerEstimate, expected: EngineChoice) -> bool:
    least = expected.least
    # Rates are right within a factor of two, so what they say is only tried where that is plain.
    return state.ms >= SLOW_STATE_MS and least.ms * (1 if least.runs else 2) < state.ms


def _by_reading(
    ctx: Context, result: ResolvedSketch, read: ReadChoice, by: AnsweredBy, where: Expr | None
) -> QueryResult:
    """The answer from these files, by the engine or Spark; records what it took. EvaluationError
    where the query fails on their rows."""
    from impctl.service.answer import answer_table
    from impctl.service.resolve import record_use, sums_of

    spec, pruned = result.prepared.spec, read.pruned
    why, quicker, start_ms, watch = "requested", "", 0.0, Stopwatch()
    table: pa.Table | None = None
    if by is not AnsweredBy.SPARK:
        expected = compare_engines(ctx, result.prepared, pruned)
        why = expected.why if by is AnsweredBy.AUTO else why
        quicker = expected.quicker if by is AnsweredBy.AUTO else ""
        if by is AnsweredBy.ENGINE or expected.is_engine:
            ctx.reporter.step(f"running {spec.name}")
            watch = Stopwatch()
            answer = _by_engine(ctx, result, read, by, where)
            if isinstance(answer, str):
                why = answer
            else:
                table = answer
    who = AnsweredBy.SPARK if table is None else AnsweredBy.ENGINE
    if table is None:
        was_up = ctx.has_spark
        ctx.spark()
        ctx.reporter.step(f"running {spec.name}")
        watch = Stopwatch()
        table = answer_table(ctx, result.prepared, result.versions, pruned, with_engine=True)
        if where is not None:
            table = answer_where(table, result.prepared.planned.root.attributes, where)
        start_ms = 0.0 if was_up else ctx.spark_start_ms
    took = watch.ms
    record_use(ctx, result, pruned, read.plain, command="query", elapsed_ms=took)
    files, _, read_bytes = sums_of(pruned)
    amounts = (files, sum(map(rows_of, pruned.files.values())), read_bytes)
    record_answer(ctx, spec, who, amounts, took, start_ms)
    return QueryResult(
        query=spec.name,
        answer=table,
        files_kept=pruned.files_kept,
        files_total=pruned.files_total,
        elapsed_ms=took,
        unused_sketches=read.unused,
        by=who,
        by_reason=why,
        quicker=quicker,
        **_facts(ctx, result),
    )


def _facts(ctx: Context, result: ResolvedSketch) -> dict[str, Any]:
    """What a result says of its query, whoever answers."""
    return {
        "versions": result.versions,
        "action": result.action,
        "reason": result.reason,
        "reuse": result.reuse,
        "spark_start_ms": ctx.spark_start_ms,
        "moments": result.prepared.moments,
    }


def _from_state(
    ctx: Context, result: ResolvedSketch, where: Expr | None
) -> tuple[QueryResult, tuple[str, ...]] | None:
    from impctl.service.resolve import current_query

    for _ in range(_ATTEMPTS):
        store, spec = ctx.reading_store(), result.prepared.spec
        if result.generation is None or store is None:
            return None
        watch = Stopwatch()
        plan, generation = ctx.memory.answer(result.prepared.planned), result.generation
        table = materialized_result(ctx, store, spec.name, plan.ending, generation, where, plan)
        if table is not None:
            facts, is_whole = _facts(ctx, result), where is None
            answer = _from_rows(ctx, spec, table, watch.ms, is_whole=is_whole, **facts)
            return answer, result.warnings
        result = current_query(ctx, spec.name)
    return None


def _without_state(ctx: Context, result: ResolvedSketch, error: ImpctlError) -> ResolvedSketch:
    """The query to read through its sketch; warns if the materialized result is damaged."""
    if isinstance(error, EvaluationError | NotExactError):
        return result
    spec = result.prepared.spec
    if ctx.policy(spec) is Policy.STRICT:
        raise error
    why = named_before(spec.name, error.message)
    hint = "" if error.hint is None else f"; {error.hint}"
    warning = f"the materialized result of query `{spec.name}` is not used: {why}{hint}"
    return replace(result, warnings=(*result.warnings, warning))


def _by_engine(
    ctx: Context, result: ResolvedSketch, read: ReadChoice, by: AnsweredBy, where: Expr | None
) -> pa.Table | str:
    """The answer, or why the engine cannot give it."""
    from impctl.service.answer import engine_answer, engine_cannot
    from impctl.service.resolve import is_for_others

    try:
        return engine_answer(ctx, result.prepared, read.pruned, where)
    except BlockedError as blocked:
        if by is AnsweredBy.ENGINE:
            hint = "omit `--by` to let Spark answer"
            raise engine_cannot(result.prepared, blocked, hint) from None
        return _not_by_engine(result.prepared, blocked)
    except (
        EvaluationError,
        JoinTooLargeError,
        NotExactError,
        OutOfMemoryError,
        TableError,
    ) as error:
        is_partial = isinstance(error, EvaluationError) and bool(read.pruned.filters)
        if by is AnsweredBy.ENGINE or is_partial:
            raise
        return f"the engine could not answer: {error.message}"
    except UnsupportedError as error:
        # Spark may answer an unbounded recursion: it derives no more rows than a LIMIT asks for.
        query = result.prepared.query
        is_cut = error.code == "recursion_limit" and query.cut is not None
        if by is AnsweredBy.ENGINE or not is_cut or is_for_others(query):
            raise
        return f"the engine could not answer: {error.message}"


def _verbatim(ctx: Context, result: Passthrough) -> QueryResult:
    from impctl.service.answer import unread_table
    from impctl.service.filters import files_in

    ctx.spark()
    ctx.reporter.step(f"running {result.spec.name}")
    watch = Stopwatch()
    table = unread_table(ctx, result)
    files = files_in(ctx.tables, result.versions)
    return QueryResult(
        query=result.spec.name,
        answer=table,
        versions=result.versions,
        files_kept=files,
        files_total=files,
        elapsed_ms=watch.ms,
        action=result.action,
        reason=result.reason,
        spark_start_ms=ctx.spark_start_ms,
        by=AnsweredBy.SPARK,
        by_reason="only Spark can read it",
    )

"""Who answers a query: its kept rows, the engine over the files to read, or Spark.

Law: whoever answers, the answer is the query's own at the pinned versions. What is kept comes
first, since reading it costs least, but where recorded runs say that reading the tables is quicker;
else the quicker one of engine and Spark by the cost model, as far as the engine can.
Where the engine cannot tell a value, or fails on one, Spark decides; asked for by name, it says so
instead. A query that fails through its sketch is read without it, so that
it fails only if the plain query does. Rows that were kept and are damaged are never told: they are
read anew through the sketch, with a warning, unless the policy is `strict`.
Out of scope: which sketch (`app.using.request`), what it leaves to read (`app.using.worth`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.app.capturing.definition import is_captured_alike
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.explanations import AnsweredEntry
from impctl.app.results.subject import named_before
from impctl.app.using.answer_condition import condition_on
from impctl.app.using.answer_costs import Foreseen, foreseen
from impctl.app.using.answer_runs import (
    SLOW_STATE_MS,
    Estimate,
    answer_runs,
    is_slow_to_tell,
    state_estimate,
)
from impctl.app.using.answers import answer_table
from impctl.app.using.engine_answer import engine_answer
from impctl.app.using.fresh_sketch import Fresh, fresh
from impctl.app.using.kept_answer import KEPT, kept_answer
from impctl.app.using.text import is_for_others
from impctl.app.using.worth import Weighed, weighed, what_is_read
from impctl.app.workbench.workbench import Workbench
from impctl.compile.answers import answer_where
from impctl.compile.compile import compile_answer
from impctl.compile.flows import BlockedError
from impctl.errors import (
    EvaluationError,
    ImpctlError,
    JoinTooLargeError,
    NotExactError,
    OutOfMemoryError,
    QueryError,
    RecaptureNeededError,
    TableError,
    UnsupportedError,
    UsageError,
)
from impctl.expr.nodes import Expr
from impctl.plan.nodes import Query, attributes_of
from impctl.stopwatch import Stopwatch
from impctl.values import dataclass
from impctl.workload.models import AnsweredBy, Policy, SketchUse

if TYPE_CHECKING:
    import pyarrow as pa

_ATTEMPTS = 10
"""Times that other processes may move an answer on while it is being read."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer, by whom and why; `read` is what was read of the tables, None from state.

    `quicker` says, where impctl chose, who would have been clearly quicker.
    """

    found: Fresh
    table: pa.Table
    by: AnsweredBy
    why: str
    elapsed_ms: float
    read: Weighed | None = None
    quicker: str = ""
    start_ms: float = 0.0
    """What starting Spark took for it."""


def answered(
    desk: Workbench, result: Fresh, use: SketchUse, by: AnsweredBy, condition: str | None = None
) -> Answered:
    """The answer of the query found; UsageError or QueryError where `by` cannot give it.

    Who asks to read through the sketch is not answered from what is kept. With a `condition` on
    the answer's columns its rows for which this is true.
    """
    where = None
    if condition is not None:
        where = condition_on(
            attributes_of(result.prepared.planned.root), condition, desk.session_zone
        )
    is_read = by is AnsweredBy.AUTO and use is SketchUse.ALWAYS
    if by is AnsweredBy.AUTO and not is_read and where is None:
        is_read = _is_state_slower(desk, result, use)
    if by in (AnsweredBy.AUTO, AnsweredBy.STATE) and not is_read:
        try:
            got = _from_state(desk, result, where)
        except (EvaluationError, RecaptureNeededError) as error:
            if by is AnsweredBy.STATE:
                raise
            got, result = None, _without_state(desk, result, error)
        if got is not None:
            return got
        if by is AnsweredBy.STATE:
            raise _not_kept(result)
    read = what_is_read(desk.tables, result, use)
    try:
        return _by_reading(desk, result, read, by, where)
    except EvaluationError as error:
        if not read.pruned.filters:
            raise
        result = _without_sketch(result, error)
    read = what_is_read(desk.tables, result, SketchUse.NEVER)
    return _by_reading(desk, result, read, by, where)


def who_answers(desk: Workbench, prepared: PreparedQuery) -> AnsweredEntry | None:
    """Who would answer the query now if nobody is asked for, and why; None where that cannot be
    told. Nothing is brought up to date."""
    try:
        return _who_answers(desk, prepared)
    except ImpctlError:
        return None


def _not_by_engine(prepared: PreparedQuery, blocked: ImpctlError) -> str:
    """Why the engine cannot run the query, with the place in the file where one is to blame."""
    place = prepared.place(blocked.span) if isinstance(blocked, BlockedError) else None
    where = "" if place is None else f" ({place})"
    return f"the engine cannot run it: {blocked.message}{where}"


def _who_answers(desk: Workbench, prepared: PreparedQuery) -> AnsweredEntry:
    store = desk.reading_store()
    stored = None if store is None else store.load(prepared.spec.name)
    if stored is not None and not is_captured_alike(desk, prepared.spec, stored):
        stored = None
    sketches, versions = ((), {}) if stored is None else (stored.sketches, stored.versions)
    read = weighed(desk.tables, prepared, sketches, versions)
    expected = foreseen(desk, prepared, versions, read.pruned)
    spark_ms = round(expected.spark.ms)
    try:
        compile_answer(desk.memory.answer(prepared.planned))
    except (BlockedError, UnsupportedError) as blocked:
        why = _not_by_engine(prepared, blocked)
        return AnsweredEntry(str(AnsweredBy.SPARK), why, None, spark_ms)
    by, why = AnsweredBy.ENGINE if expected.is_engine else AnsweredBy.SPARK, expected.why
    if stored is not None and stored.state_meta.get("answer"):
        state = state_estimate(answer_runs(desk, prepared.spec))
        if not _is_slower(state, expected):
            by, why = AnsweredBy.STATE, f"{KEPT}; without them, {why}"
    return AnsweredEntry(str(by), why, round(expected.engine.ms), spark_ms)


def _is_state_slower(desk: Workbench, result: Fresh, use: SketchUse) -> bool:
    """Whether kept rows take longer to be told than the quicker one of engine and Spark to read
    the tables, by recorded runs of these."""
    store, spec = desk.reading_store(), result.prepared.spec
    if result.generation is None or store is None or not is_slow_to_tell(desk, store, spec):
        return False
    state = state_estimate(answer_runs(desk, spec))
    read = what_is_read(desk.tables, result, use)
    return _is_slower(state, foreseen(desk, result.prepared, result.versions, read.pruned))


def _is_slower(state: Estimate, expected: Foreseen) -> bool:
    least = expected.least
    # Rates are right within a factor of two, so what they say is only tried where that is plain.
    return state.ms >= SLOW_STATE_MS and least.ms * (1 if least.runs else 2) < state.ms


def _by_reading(
    desk: Workbench, result: Fresh, read: Weighed, by: AnsweredBy, where: Expr | None
) -> Answered:
    """The answer from these files; EvaluationError where the query fails on their rows."""
    why, quicker = "requested", ""
    if by is not AnsweredBy.SPARK:
        expected = foreseen(desk, result.prepared, result.versions, read.pruned)
        quicker = expected.quicker if by is AnsweredBy.AUTO else ""
        if by is AnsweredBy.ENGINE or expected.is_engine:
            run = _by_engine(desk, result, read, expected, by, where)
            if isinstance(run, Answered):
                return replace(run, quicker=quicker)
            why = run
        else:
            why = expected.why
    return replace(_by_spark(desk, result, read, why, where), quicker=quicker)


def _from_state(desk: Workbench, result: Fresh, where: Expr | None) -> Answered | None:
    """The kept answer; None where there is none."""
    for _ in range(_ATTEMPTS):
        store = desk.reading_store()
        if result.generation is None or store is None:
            return None
        watch = Stopwatch()
        plan = desk.memory.answer(result.prepared.planned)
        name = result.prepared.spec.name
        table = kept_answer(desk, store, name, plan.ending, result.generation, where, plan)
        if table is not None:
            return Answered(result, table, AnsweredBy.STATE, KEPT, watch.ms)
        result = fresh(desk, result.prepared.spec.name)
    return None


def _without_state(desk: Workbench, result: Fresh, error: ImpctlError) -> Fresh:
    """The query to be read through its sketch; with a warning where what is kept is damaged."""
    if isinstance(error, EvaluationError | NotExactError):
        return result
    spec = result.prepared.spec
    if desk.policy(spec) is Policy.STRICT:
        raise error
    why = named_before(spec.name, error.message)
    hint = "" if error.hint is None else f"; {error.hint}"
    warning = f"the materialized result of query `{spec.name}` is not used: {why}{hint}"
    return replace(result, warnings=(*result.warnings, warning))


def _without_sketch(result: Fresh, error: EvaluationError) -> Fresh:
    """The query to be read whole, with a warning.

    Of a group that a condition or LIMIT drops the sketch may show a part, and what is computed of
    the part, such as a quotient, may fail where that of the group does not.
    """
    name = result.prepared.spec.name
    warning = (
        f"the sketch of query `{name}` was not used: the query fails on groups that it "
        f"reads only in part: {error.message}"
    )
    return replace(result, sketches=(), warnings=(*result.warnings, warning))


def _by_engine(
    desk: Workbench,
    result: Fresh,
    read: Weighed,
    expected: Foreseen,
    by: AnsweredBy,
    where: Expr | None,
) -> Answered | str:
    """The engine's answer, or why it has none."""
    desk.reporter.step(f"running {result.prepared.spec.name}")
    watch = Stopwatch()
    try:
        table = engine_answer(
            desk, result.prepared, result.versions, read.pruned, result.sketches, where
        )
    except BlockedError as blocked:
        if by is AnsweredBy.ENGINE:
            raise _cannot(result.prepared, blocked) from None
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
        if by is AnsweredBy.ENGINE or not _may_end_in_spark(result.prepared.query, error):
            raise
        return f"the engine could not answer: {error.message}"
    why = expected.why if by is AnsweredBy.AUTO else "requested"
    return Answered(result, table, AnsweredBy.ENGINE, why, watch.ms, read)


def _may_end_in_spark(query: Query, error: UnsupportedError) -> bool:
    """Whether Spark may answer what has no end: it derives no more rows than a LIMIT asks for."""
    is_endless = error.code == "recursion_limit"
    return is_endless and query.cut is not None and not is_for_others(query)


def _by_spark(
    desk: Workbench, result: Fresh, read: Weighed, why: str, where: Expr | None
) -> Answered:
    was_up = desk.has_spark
    desk.spark()
    desk.reporter.step(f"running {result.prepared.spec.name}")
    watch = Stopwatch()
    table = answer_table(desk, result.prepared, result.versions, read.pruned, result.sketches)
    if where is not None:
        table = answer_where(table, attributes_of(result.prepared.planned.root), where)
    start_ms = 0.0 if was_up else desk.spark_start_ms
    return Answered(result, table, AnsweredBy.SPARK, why, watch.ms, read, start_ms=start_ms)


def _not_kept(result: Fresh) -> ImpctlError:
    """That there is none, or what kept the sketch from being had with which it would be."""
    if result.refusal is not None:
        return result.refusal
    spec = result.prepared.spec
    hint = "omit `--by`, or write `answer: true` under the query and capture it"
    if spec.answer:
        hint = "`impctl explain` shows why its result is not materialized; omit `--by`"
    return UsageError(
        f"The result of query `{spec.name}` is not materialized", hint=hint, code="answer_not_kept"
    )


def _cannot(prepared: PreparedQuery, blocked: BlockedError) -> QueryError:
    return QueryError(
        f"The engine cannot run query `{prepared.spec.name}`: {blocked.message}",
        hint="omit `--by` to let Spark answer",
        code="engine_cannot",
        location=prepared.place(blocked.span),
    )

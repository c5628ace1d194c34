"""The kept answer of a query of which nothing moved, told without reading SQL.

Law: it is told only where `maintain` would have nothing to do, and only as the very program that
runs wrote beside the state how it is made (`app.capturing.kept_ending`). Whatever is in the way,
damage too, is left to those who read the query and can say so.
Out of scope: bringing anything up to date (`app.using.fresh_sketch`).
"""

from __future__ import annotations

from impctl.app.capturing.definition import stored_query
from impctl.app.capturing.kept_ending import known_ending
from impctl.app.capturing.moments import stored_moments
from impctl.app.capturing.pins import catch_up
from impctl.app.maintaining.maintained import NO_NEW_VERSION, has_nothing_to_do
from impctl.app.results.results import QueryResult
from impctl.app.using.answer_runs import is_slow_to_tell, record_told
from impctl.app.using.kept_answer import KEPT, kept_answer
from impctl.app.using.only_query import only_query
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError
from impctl.expr.nodes import Expr
from impctl.rules.finalize import Ending
from impctl.stopwatch import Stopwatch
from impctl.types import QueryName
from impctl.workload.models import AnsweredBy


def told_at_once(
    desk: Workbench, query: QueryName | None, condition: str | None = None
) -> QueryResult | None:
    """The answer, or of it the rows for which a condition on its columns is true.

    None where there is none, or something has to be done or said first.
    """
    (spec,) = desk.queries([query if query is not None else only_query(desk)])
    store = desk.reading_store()
    if store is None or not spec.answer or not spec.is_sketched:
        return None
    try:
        if condition is None and is_slow_to_tell(desk, store, spec):
            # Whether somebody else is quicker takes reading the query.
            return None
        stored = stored_query(desk, store, spec)
        catch_up(desk.tables, stored)
        ending = known_ending(desk.tables, stored)
        if ending is None or not has_nothing_to_do(desk, spec, stored, for_use=True):
            return None
        watch = Stopwatch()
        where = None if condition is None else _read(desk, ending, condition)
        table = kept_answer(desk, store, spec.name, ending, stored.generation, where)
    except ImpctlError:
        return None
    if table is None:
        return None
    desk.count_answer(spec.name)
    elapsed_ms = watch.ms
    if condition is None:
        record_told(desk, store, spec, table, elapsed_ms)
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


def _read(desk: Workbench, ending: Ending, condition: str) -> Expr:
    # A condition is SQL, and what reads that is loaded for it alone.
    from impctl.app.using.answer_condition import condition_on

    outputs = [one.attribute for one in ending.outputs]
    return condition_on(outputs, condition, desk.session_zone)

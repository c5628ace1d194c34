"""What an answer would be without some rows of tables, told from a query's state.

Law: what is told is the difference of the answer over the recursion's rows and over those that
functions say would be left (`engine.fixpoint.absorption`), copy for copy; anything may stand above
the recursion that the engine runs. No table is read, so a condition asks for columns that the state
has of every access; rows left out are those that the recursion reads.
Out of scope: the same from tables (`app.using.answer_without`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress

from impctl.app.maintaining.answer_changes import RowsOf, changes_between
from impctl.app.using.answer_without import Without, conditions_by_table, rows_left_out
from impctl.app.using.engine_answer import LeftOut
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.using.kept_functions.state import absorbed_rows, files_left_out
from impctl.app.workbench.workbench import Workbench
from impctl.compile.compile import compile_answer
from impctl.compile.flows import BlockedError
from impctl.engine.batch import Batch
from impctl.plan.nodes import Fixpoint, Plan, Scan, inputs_of, with_inputs
from impctl.provenance.absorbed import AbsorbedRows, leaves_of, rows_without
from impctl.rules.finalize import AnswerPlan
from impctl.types import TableName

_MADE = "made"


def without_from_state(desk: Workbench, result: Fresh, texts: Sequence[str]) -> Without | None:
    """As `answer_without`; None where the state does not tell it."""
    answer: AnswerPlan = desk.memory.answer(result.prepared.planned)
    absorbed = absorbed_rows(desk, result, answer.kept)
    if absorbed is None:
        return None
    conditions = conditions_by_table(result.prepared, texts)
    left_out = {table: rows_left_out(desk, table, some) for table, some in conditions.items()}
    leaves = _leaves(absorbed, left_out)
    if leaves is None:
        return None
    try:
        before, after = (
            _answered(absorbed, answer, rows) for rows in rows_without(absorbed, leaves)
        )
    except BlockedError:
        # The other way says so, by its place.
        return None
    changes = changes_between(before, after, desk.session_zone)
    removed = {table: one.rows for table, one in left_out.items()}
    return Without(changes, conditions, removed, 0, files_left_out(desk, result), from_state=True)


def _leaves(absorbed: AbsorbedRows, left_out: Mapping[TableName, LeftOut]) -> list[int] | None:
    """The numbers of the leaves that are left out; None where the state does not tell which.

    Counts for each table the rows of the access that has most of them.
    """
    result: list[int] = []
    most = dict.fromkeys(left_out, 0)
    for at, (of, ingredient) in enumerate(
        zip(absorbed.of, absorbed.operator.ingredients, strict=True)
    ):
        if of is None and ingredient.is_leaf:
            return None
        if of is None or of.table not in left_out:
            continue
        out = left_out[of.table]
        if not set(out.columns) <= set(of.columns):
            return None
        rows, numbers, copies = leaves_of(absorbed, at)
        if not len(rows):
            continue
        is_out = out.are_out(rows).tolist()
        result += compress(numbers, is_out)
        most[of.table] = max(most[of.table], sum(compress(copies, is_out)))
    for table, count in most.items():
        left_out[table].rows = count
    return result


def _answered(absorbed: AbsorbedRows, answer: AnswerPlan, rows: Batch) -> RowsOf:
    """What the answer is made of, over some of the recursion's rows."""
    compiled = compile_answer(replace(answer, kept=_over_rows(answer.kept, absorbed)))
    compiled.circuit.start()
    if len(rows):
        compiled.circuit.step(rows)
    assert compiled.kept is not None, "a result is materialized"
    return RowsOf(answer.ending, compiled.kept.whole(), compiled.kept.bounded)


def _over_rows(plan: Plan, absorbed: AbsorbedRows) -> Plan:
    """The plan that reads the recursion's rows as those of a table."""
    if isinstance(plan, Fixpoint) and plan.id == absorbed.fixpoint:
        return Scan(_MADE, _MADE, plan.attributes, span=plan.span)
    return with_inputs(plan, tuple(_over_rows(one, absorbed) for one in inputs_of(plan)))

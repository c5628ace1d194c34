"""The answer of a query from the rows kept with its state.

Law: only rows of the very commit that the query was brought up to are told; where the store moved
on meanwhile there is none, and whoever asked brings it up to date again.
Out of scope: keeping the rows (`circuits`), answers of older versions, which are not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from impctl.app.workbench.workbench import Workbench
from impctl.compile.answers import answer_of_rows, kept_rows, key_asked
from impctl.engine.result_rows import AnswerRows
from impctl.expr.nodes import Expr
from impctl.rules.finalize import Ending
from impctl.store.reader import StoreReader
from impctl.types import QueryName

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.rules.finalize import AnswerPlan


KEPT = "from the materialized result"
"""Why who reads them is quickest."""


def kept_answer(
    desk: Workbench,
    store: StoreReader,
    query: QueryName,
    ending: Ending,
    generation: int,
    where: Expr | None = None,
    plan: AnswerPlan | None = None,
) -> pa.Table | None:
    """The answer as of this commit; None where the store has another one by now.

    With `where`, a condition on its columns, the rows that it is true for; where it asks for one
    key, others are not looked at. `plan` is that of the rows: without it they must lie there as
    they are (`app.capturing.kept_ending`).
    """
    stored = store.load(query)
    if stored is None or stored.generation != generation:
        return None
    kept: AnswerRows = kept_rows(ending)
    if plan is not None and stored.state_meta.get("trees"):
        # Where rows lie there as they are, nothing of plans is loaded.
        from impctl.compile.compile import compile_answer

        told = compile_answer(plan, {}).kept
        assert told is not None
        kept = told
    runs = store.load_runs(query, kept.beginning)
    now = store.load(query)
    if now is None or now.generation != generation:
        return None
    kept.load(runs, None if where is None else key_asked(ending, kept, where))
    return answer_of_rows(ending, kept.whole(), desk.session_zone, where)

"""The answer of a query from the rows kept with its state.

Law: only rows of the very commit that the query was brought up to are told; where the store moved
on meanwhile there is none, and whoever asked brings it up to date again.
Out of scope: keeping the rows (`circuits`), answers of older versions, which are not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.workbench.workbench import Workbench
from impctl.circuits.answers import answer_of_rows, kept_rows, key_asked
from impctl.expr.nodes import Expr
from impctl.store.reader import StoreReader

if TYPE_CHECKING:
    import pyarrow as pa


def kept_answer(
    desk: Workbench,
    store: StoreReader,
    prepared: PreparedQuery,
    generation: int,
    where: Expr | None = None,
) -> pa.Table | None:
    """The answer as of this commit; None where the store has another one by now.

    With `where`, a condition on its columns, the rows that it is true for; where it asks for one
    key, others are not looked at.
    """
    answer = desk.memory.answer(prepared.planned)
    kept = kept_rows(answer)
    name = kept.rows.name
    runs = store.load_runs(prepared.spec.name, name)
    stored = store.load(prepared.spec.name)
    if stored is None or stored.generation != generation:
        return None
    code = None if where is None else key_asked(answer, kept, where)
    if code is None:
        kept.rows.load(runs.get(name, ()))
    else:
        kept.rows.load_some(runs.get(name, ()), code)
    return answer_of_rows(answer, kept.whole(), desk.session_zone, where)

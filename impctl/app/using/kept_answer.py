"""The answer of a query from the rows kept with its state.

Law: only rows of the very commit that the query was brought up to are told; where the store moved
on meanwhile there is none, and whoever asked brings it up to date again.
Out of scope: keeping the rows (`circuits`), answers of older versions, which are not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from impctl.aliases import QueryName
from impctl.app.workbench.workbench import Workbench
from impctl.circuits.answers import answer_of_rows, kept_rows, key_asked
from impctl.expr.nodes import Expr
from impctl.plan.ending import Ending
from impctl.store.reader import StoreReader

if TYPE_CHECKING:
    import pyarrow as pa


KEPT = "its rows are kept with the state"
"""Why who reads them is quickest."""


def kept_answer(
    desk: Workbench,
    store: StoreReader,
    query: QueryName,
    ending: Ending,
    generation: int,
    where: Expr | None = None,
) -> pa.Table | None:
    """The answer as of this commit; None where the store has another one by now.

    With `where`, a condition on its columns, the rows that it is true for; where it asks for one
    key, others are not looked at.
    """
    kept = kept_rows(ending)
    name = kept.rows.name
    runs = store.load_runs(query, name)
    stored = store.load(query)
    if stored is None or stored.generation != generation:
        return None
    code = None if where is None else key_asked(ending, kept, where)
    if code is None:
        kept.rows.load(runs.get(name, ()))
    else:
        kept.rows.load_some(runs.get(name, ()), code)
    return answer_of_rows(ending, kept.whole(), desk.session_zone, where)

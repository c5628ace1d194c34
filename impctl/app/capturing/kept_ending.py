"""How an answer is made of its kept rows, stored beside them: told later without reading SQL.

Law: it is that of the plan that the state was captured or carried on with, and is taken for the
query's only by the very program that wrote it (`app.workbench.build_mark`), and only where the
tables' log entries are there to compare. All else that the reading of the query rests on is for
whoever asks to compare: its definition, the release, the constants of the clock, the tables and
their versions.
Out of scope: the form in which it is written (`rules.finalize`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from impctl.app.capturing.pins import are_entries_there
from impctl.app.workbench.build_mark import build_mark
from impctl.app.workbench.pinned import PinnedTables
from impctl.store.reader import StoreReader
from impctl.store.records import StoredQuery
from impctl.types import QueryName

if TYPE_CHECKING:
    # A run with nothing to do has no use for plans.
    from impctl.rules.finalize import AnswerPlan, Ending


def result_bytes(store: StoreReader, query: QueryName) -> int:
    """What is stored of the rows of a query's answer."""
    from impctl.compile.answers import ANSWER

    runs = store.run_refs(query)
    return sum(run.bytes for run in runs if run.arrangement.startswith(f"{ANSWER}."))


def ending_to_store(answer: AnswerPlan | None) -> tuple[Any, ...]:
    """What is stored of it; nothing where no answer is kept, or SQL has to be read to tell it."""
    from impctl.rules.finalize import written_ending

    mark = build_mark()
    if answer is None or not mark:
        return ()
    try:
        return (mark, written_ending(answer.ending))
    except TypeError:
        # A constant of a class that is not written: asking for the answer reads the SQL then.
        return ()


def has_ending(tables: PinnedTables, stored: StoredQuery) -> bool:
    """Whether this program wrote how the answer is made of what is kept, of these very tables."""
    mark, result = build_mark(), stored.state_meta.get("ending") or [""]
    return mark == result[0] != "" and are_entries_there(stored, tables)


def known_ending(tables: PinnedTables, stored: StoredQuery) -> Ending | None:
    """How the answer is made of what is kept; None where SQL has to be read to know."""
    from impctl.rules.finalize import read_ending

    if not has_ending(tables, stored):
        return None
    try:
        return read_ending(stored.state_meta["ending"][1])
    except (ValueError, LookupError):
        return None

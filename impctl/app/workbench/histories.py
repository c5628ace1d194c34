"""The commits of a run's tables as numbers: what the store knows, and what was committed since.

Law: costs the entries of logs that are new; nothing is written.
Out of scope: keeping them (`workbench.remembered`), what follows (`app.maintaining.expected`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from impctl.app.workbench.pinned import PinnedTables
from impctl.errors import ImpctlError
from impctl.forecast import History
from impctl.store.reader import StoreReader
from impctl.tables.log import commit_history
from impctl.types import TableName, TableVersion

Texts = Mapping[TableName, Mapping[TableVersion, str]]
"""Entries of logs that were read already."""


def known_histories(
    tables: PinnedTables,
    store: StoreReader | None,
    names: Iterable[TableName],
    texts: Texts | None = None,
) -> dict[TableName, History]:
    """The histories of these tables up to their pinned versions, of one that cannot be opened as
    far as it is known; nothing is written."""
    asked = tuple(dict.fromkeys(names))
    held = {} if store is None else store.arrivals(asked)
    return gone_on(tables, held, asked, texts)


def gone_on(
    tables: PinnedTables,
    held: Mapping[TableName, History],
    names: Iterable[TableName],
    texts: Texts | None = None,
) -> dict[TableName, History]:
    """These histories with what was committed to the tables since."""
    result = dict(held)
    for name in names:
        try:
            source = tables.source(name)
        except ImpctlError:
            continue
        result[name] = commit_history(source, held.get(name), (texts or {}).get(name))
    return result

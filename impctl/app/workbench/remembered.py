"""The commits of a run's tables as numbers, kept in the store for the runs to come.

Law: costs what is new, not what is known; tables that no run has opened are not opened for it.
What was not written, as on a full disk, is read again by the next run. A change that the workload
file says never comes is told once: by the run that remembers it.
Out of scope: reading them (`workbench.histories`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.app.workbench.histories import Texts, gone_on
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError
from impctl.forecast import Arrival
from impctl.store.disk import suppress_full
from impctl.store.store import Store
from impctl.types import TableName, TableVersion

CHANGE_UNEXPECTED = "change_unexpected"


def remember_histories(
    desk: Workbench,
    store: Store,
    before: Mapping[TableName, TableVersion],
    texts: Texts | None = None,
) -> list[str]:
    """Bring the store's histories of the tables that were used up to date; what fails is a warning,
    since what the run was for is committed.

    Gives a warning for each table that changed though the workload file says that it never does:
    after what the store knew, else after the version in `before`.
    """
    try:
        return _remembered(desk, store, before, texts)
    except ImpctlError as error:
        return [f"{error.message}; {error.hint}"]


def _remembered(
    desk: Workbench, store: Store, before: Mapping[TableName, TableVersion], texts: Texts | None
) -> list[str]:
    names = list(desk.tables.seen)
    held = store.arrivals(names, is_whole=False)
    result = gone_on(desk.tables, held, names, texts)
    new = {name: history for name, history in result.items() if history != held.get(name)}
    if new:
        with suppress_full():
            store.save_arrivals(new)
    warnings = []
    for name, history in new.items():
        known = held.get(name)
        is_same = known is not None and known.table_id == history.table_id
        since = known.until if known is not None and is_same else before.get(name)
        if since is not None and desk.workload.tables[name].never_changes:
            late = [each for each in history.arrivals if each.version > since]
            warnings += [_unexpected(name, late)] if late else []
    return warnings


def _unexpected(table: TableName, late: Sequence[Arrival]) -> str:
    first, last = late[0].version, late[-1].version
    versions = f"version {first}" if first == last else f"versions {first} to {last}"
    return (
        f"table `{table}` changed in {versions}, but the workload file declares `changes: "
        "never`; sketches are maintained as usual, but remove that line "
        f"[{CHANGE_UNEXPECTED}]"
    )

"""Remove what nothing needs any more, in the store and beside the tables.

Law: removed are sketch versions of a query before its latest few, partitions without a sketch,
state files without a run, and scratch folders whose owner is dead; never anything a table, a stored
sketch or a living process needs. A dry run lists the same and writes nothing. Folders are checked
even if the store cannot be.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from impctl.errors import ImpctlError, StorageError, UsageError
from impctl.service.results import Failure, GcEntry, GcResult, Outcome
from impctl.store.disk import RealDisk, abandoned, remove_abandoned, temporary_folder
from impctl.store.reader import KEPT_VERSIONS
from impctl.store.records import Collected, Leftover
from impctl.tables.storage import local_path

if TYPE_CHECKING:
    from impctl.service.context import Context


def gc(ctx: Context, keep: int | None = None) -> Outcome:
    """Remove leftovers, and all but the latest `keep` sketch versions of each query."""
    keep_versions = KEPT_VERSIONS if keep is None else keep
    is_dry_run = ctx.settings.dry_run
    failures: list[Failure] = []
    entries: list[GcEntry] = []
    try:
        match = _collected(ctx, keep_versions)
        entries += [
            GcEntry("versions", old.query, old.count, old.bytes, not is_dry_run)
            for old in match.versions
        ]
        if match.partitions:
            size = match.partition_bytes
            entries.append(GcEntry("partitions", "", match.partitions, size, not is_dry_run))
        entries += [_entry("file", file) for file in match.files]
        failures += [] if match.refusal is None else [Failure(None, match.refusal)]
    except ImpctlError as error:
        failures.append(Failure(None, error))
    entries += [_entry("folder", folder) for folder in _scratch(ctx)]
    left = [entry.name for entry in entries if not entry.removed]
    if left and not is_dry_run:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        unremoved = StorageError(
            f"Could not delete {left[0]}{more}",
            code="gc_left",
            hint="check who can write there, and run the command again",
        )
        failures.append(Failure(None, unremoved))
    size = sum(entry.bytes for entry in entries if entry.removed or is_dry_run)
    result = GcResult(str(ctx.store_path), keep_versions, tuple(entries), size, is_dry_run)
    return Outcome((result,), (), tuple(failures))


def _collected(ctx: Context, keep: int) -> Collected:
    store = ctx.reading_store()
    if store is None:
        return Collected()
    if ctx.settings.dry_run:
        return store.collectable(keep)
    ctx.reporter.step("deleting old sketch versions and unused files")
    # Leftovers of a killed writer are reported by `collect`, not swept away with the lock.
    with ctx.writing("gc", sweep=False) as locked:
        return locked.collect(keep=keep)


def _scratch(ctx: Context) -> list[Leftover]:
    paths = [local_path(table.path) for table in ctx.workload.tables.values()]
    parents = [Path(path).parent for path in paths if path is not None]
    with suppress(UsageError):  # without a folder for temporary files nothing is left in it
        parents.append(temporary_folder())
    result = abandoned(parents)
    if ctx.settings.dry_run:
        return list(result)
    disk = RealDisk()
    return [replace(folder, removed=remove_abandoned(folder, disk)) for folder in result]


def _entry(kind: str, leftover: Leftover) -> GcEntry:
    return GcEntry(kind, str(leftover.path), 1, leftover.bytes, leftover.removed)

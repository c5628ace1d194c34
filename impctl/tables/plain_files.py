"""Whether the rows of a snapshot are simply those of its files, for readers that know no Delta.

Law: nothing that such a reader would get wrong is passed over: rows that are deleted but still
there, columns that are not in the files or have other names there.
Out of scope: types that such a reader takes otherwise.
"""

from __future__ import annotations

from impctl.tables.snapshot import Snapshot


def why_not_plain(snapshot: Snapshot, *, reads_folders: bool = False) -> str:
    """Why its rows are not those of its files; empty where they are.

    Who `reads_folders` takes the values of partition columns from their names (`day=2026-01-31`).
    """
    if snapshot.column_mapping is not None:
        return "it uses column mapping"
    if snapshot.partition_columns and not (reads_folders and _is_in_folders(snapshot)):
        return "it has partition columns"
    if any(file.deleted is not None for file in snapshot.files):
        return "it has deletion vectors"
    return ""


def _is_in_folders(snapshot: Snapshot) -> bool:
    """Whether the path of every file names its partition; a writer of Delta need not do so."""
    names = [f"/{column}=" for column in snapshot.partition_columns]
    return all(name in file.uri for file in snapshot.files for name in names)

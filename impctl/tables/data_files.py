"""Opening a table's data files, in this one place.

Law: the log only chooses among files below the table's folder, or below a folder that the workload
names as `clone_of`. A name in the log never selects a file system, a host or an option, so reading
a table on the disk causes no network access. FIFOs, devices and links that lead out of the folder
are refused before anything opens them.
Cost: one `lstat` for each local file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import Any

import pyarrow.parquet as pq

from impctl.errors import HistoryGoneError, ImpctlError, StorageError, UnsupportedError
from impctl.tables.failures import failure_text, is_missing
from impctl.tables.snapshot import DataFile, Snapshot, outside_table
from impctl.tables.storage import below_root, local_path, object_store


class DataFiles:
    """The data files of one snapshot, its change data and removed files included.

    Of `files` an object store need not be asked for the size.
    """

    def __init__(self, snapshot: Snapshot, files: Iterable[DataFile] = ()) -> None:
        self._snapshot = snapshot
        self._known = tuple(files)
        self._stores: dict[str, Any] = {}
        self._folders: dict[str, bool] = {}
        """Whether a local folder, links followed, lies below its root."""

    def open(self, file: DataFile, *, buffer: int = 0) -> pq.ParquetFile:
        """The file, to be closed by the caller; OSError or ArrowException where it is unreadable.

        With a `buffer` columns of a local file are read by so many bytes, not whole at once; from
        an object store that would be many requests.
        UnsupportedError for one that the table must not have.
        """
        store, name, is_local = self._place(file)
        return pq.ParquetFile(
            name,
            filesystem=store,
            buffer_size=buffer if is_local else 0,
            coerce_int96_timestamp_unit="us",
        )

    def footer(self, file: DataFile) -> pq.FileMetaData:
        """The Parquet metadata of the file; errors as for `open`."""
        store, name, _ = self._place(file)
        return pq.read_metadata(name, filesystem=store)

    def check(self, files: Iterable[DataFile]) -> None:
        """UnsupportedError where one of these must not be opened; for readers other than this."""
        for file in files:
            self._check_local(file, self._root(file)[0])

    def _place(self, file: DataFile) -> tuple[Any, str, bool]:
        """The file system of the file, its name there, and whether it is on the local disk."""
        root, name = self._root(file)
        self._check_local(file, root)
        if root not in self._stores:
            self._stores[root] = self._store(root)
        is_local = local_path(root) is not None
        return self._stores[root], file.uri if is_local else name, is_local

    def _root(self, file: DataFile) -> tuple[str, str]:
        """The root that the file lies below, and its path from there."""
        for root in self._snapshot.roots:
            name = below_root(root, file.uri)
            if name is not None:
                return root, name
        raise outside_table(self._snapshot.table, file.uri)

    def _store(self, root: str) -> Any:
        if local_path(root) is not None:
            import pyarrow.fs as pa_fs

            return pa_fs.LocalFileSystem()
        names = ((below_root(root, file.uri), file.size) for file in self._known)
        sizes = {name: size for name, size in names if name and size}
        return object_store(root, self._snapshot.storage_options, sizes)

    def _check_local(self, file: DataFile, root: str) -> None:
        if local_path(root) is None:
            return
        try:
            mode = os.lstat(file.uri).st_mode
        except OSError:
            return  # Whoever opens it says what is the matter.
        folder = os.path.dirname(file.uri)
        if folder not in self._folders:
            self._folders[folder] = _is_inside(folder, root)
        is_inside = self._folders[folder]
        if stat.S_ISLNK(mode):
            is_inside = is_inside and _is_inside(file.uri, root)
            mode = os.stat(file.uri).st_mode if os.path.exists(file.uri) else stat.S_IFREG
        if not is_inside:
            raise outside_table(self._snapshot.table, file.uri)
        if not stat.S_ISREG(mode):
            raise UnsupportedError(
                f"A data file of table `{self._snapshot.table}` is not a regular file: {file.uri}",
                hint="the table's log lists it; check who writes to the table",
                code="data_file_irregular",
            )


def _is_inside(path: str, root: str) -> bool:
    """Whether a local path lies below the root, or is it, once links are followed."""
    real, top = os.path.realpath(path), os.path.realpath(root)
    return real == top or real.startswith(os.path.join(top, ""))


def read_failure(snapshot: Snapshot, file: DataFile, error: Exception) -> ImpctlError:
    """The error for a data file that could not be read."""
    if is_missing(error):
        return HistoryGoneError(
            f"Version {snapshot.version} of table `{snapshot.table}` can no longer be read:"
            f" data file {file.uri} is gone",
            hint="run `impctl capture`; to keep files longer, raise "
            "`delta.deletedFileRetentionDuration` before the next VACUUM",
        )
    return StorageError(
        f"Reading a data file of table `{snapshot.table}` failed: {failure_text(error)}",
        hint=f"check that the file can be read: {file.uri}",
    )

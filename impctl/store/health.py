"""How a store on disk is: opened, its rows and state files checked, its folder looked at.

Law: nothing is written, the lock is not taken, and damage becomes a fact of the record instead of
an error, so that the rest is looked at all the same. Checking reads all state.
Out of scope: what is bad and what to do about it (`app.examining.store`).
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from impctl.data.pages import whole_table
from impctl.errors import ImpctlError
from impctl.store.collect import KEPT_VERSIONS
from impctl.store.faults import translated
from impctl.store.layout import Layout
from impctl.store.lock import Owner, noted_owner
from impctl.store.reader import StoreReader
from impctl.store.records import Collected
from impctl.types import QueryName
from impctl.values import dataclass

MOST_FILES = 100_000
"""Files and folders of a store that are looked at: it has a few for each query."""
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a store, or where it would be made: rights and room."""

    path: Path
    is_writable: bool
    open_to_others: tuple[Path, ...]
    """What group or everybody may write."""
    used: int
    free: int
    is_whole: bool = True
    """Whether all of the folder was looked at; of a folder with too many files, only some."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What an open store holds; `damaged` are the queries whose rows or state are not whole."""

    queries: tuple[QueryName, ...]
    damaged: tuple[tuple[QueryName, ImpctlError], ...]
    leftovers: Collected
    kept: int
    with_state: bool


def folder_of(path: Path) -> Folder:
    """Rights and room of the store's folder, or of the nearest folder above that is there."""
    with translated(path):
        there = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
    looked_at = islice(_files(path), MOST_FILES + 1) if there == path else ()
    files = tuple(looked_at)
    open_to_others = tuple(
        file for file in files if _mode(file) & _OTHERS_MAY_WRITE and not file.is_symlink()
    )
    used = sum(_size(file) for file in files)
    may_write = os.access(there, os.W_OK | os.X_OK)
    may_write = may_write and all(os.access(file, os.W_OK) for file in files)
    free, is_whole = shutil.disk_usage(there).free, len(files) <= MOST_FILES
    return Folder(there, may_write, open_to_others, used, free, is_whole)


def lock_owner(path: Path) -> Owner | None:
    """Who noted down to hold the writer's lock, be it alive or dead."""
    return noted_owner(Layout(path))


def check_store(store: StoreReader, *, with_state: bool) -> Checked:
    """Every query's rows and state files against their checksums; ImpctlError for the catalog's.

    Without `with_state` of files only what tells where their columns lie.
    """
    names = store.queries()
    damaged = []
    for name in names:
        try:
            store.load(name)
            store.history(name, 1)
            for runs in store.load_runs(name).values():
                for _, stored in runs if with_state else ():
                    whole_table(stored)
        except ImpctlError as error:
            damaged.append((name, error))
    return Checked(names, tuple(damaged), store.collectable(), KEPT_VERSIONS, with_state)


def _files(path: Path) -> Iterator[Path]:
    yield path
    for folder, folders, names in os.walk(path):
        for name in (*folders, *names):
            yield Path(folder) / name


def _mode(file: Path) -> int:
    try:
        return file.stat().st_mode
    except OSError:
        return 0


def _size(file: Path) -> int:
    """0 for what a writer has removed meanwhile."""
    try:
        result = file.stat()
    except OSError:
        return 0
    return result.st_size if stat.S_ISREG(result.st_mode) else 0

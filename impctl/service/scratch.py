"""A scratch copy of a workload: its tables cloned, its store new, all of it removed at the end.

Law: nothing under the user's tables or store is written; data files are hard links where the file
system allows, so a copy costs no space to speak of.
Out of scope: what is measured on it (`measure.measured`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from impctl.errors import UsageError
from impctl.service.context import Workbench
from impctl.store.disk import BENCH_SCRATCH, scratch_folder
from impctl.tables.storage import local_path
from impctl.tables.write.maintenance import clone_table

if TYPE_CHECKING:
    from impctl.service.settings import Settings
    from impctl.types import TableName
    from impctl.workload.models import TableSpec


@contextmanager
def scratch_copy(desk: Workbench, tables: tuple[TableName, ...]) -> Iterator[Workbench]:
    """A workbench on clones of these tables, with a store of its own."""
    _check_local(desk, tables)
    with scratch_folder(BENCH_SCRATCH, folder_beside(desk, tables)) as folder:
        specs: Mapping[TableName, TableSpec] = desk.workload.tables
        cloned = dict(specs)
        for table in tables:
            desk.reporter.step(f"cloning {table}")
            target = folder / table
            clone_table(specs[table].path, str(target))
            cloned[table] = replace(specs[table], path=str(target))
        workload = replace(desk.workload, tables=cloned)
        settings: Settings = replace(desk.settings, store=folder / "store", dry_run=False)
        scratch = Workbench(settings, workload, desk.reporter)
        try:
            yield scratch
        finally:
            scratch.close()


def folder_beside(desk: Workbench, tables: Iterable[TableName]) -> Path | None:
    """A folder on the tables' own device where hard links can be made; None where any
    folder will do."""
    for table in tables:
        path = local_path(desk.workload.tables[table].path)
        if path is not None and os.access(Path(path).parent, os.W_OK):
            return Path(path).parent
    return None


def _check_local(desk: Workbench, tables: Iterable[TableName]) -> None:
    for table in tables:
        if local_path(desk.workload.tables[table].path) is None:
            raise UsageError(
                f"Table `{table}` is not on the local disk, so `bench` cannot clone it",
                hint="copy the table to a local folder and point a workload at it",
            )

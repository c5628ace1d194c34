"""Whether other workload files beside this one keep their sketches in the same store.

Law: reads only, and only files of the same folder; one that cannot be read as a workload is none.
Out of scope: what the store holds (`app.examining.store`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from impctl.app.results.findings import Area, Finding, Subject
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError
from impctl.workload.load import load_workload

_MOST_FILES = 100
"""A folder of more YAML files is one of something else."""


def sharing_findings(desk: Workbench) -> Iterator[Finding]:
    """A warning that names the files with this store, and the queries that have one name."""
    result = dict(_sharers(desk))
    if not result:
        return
    own = {name.lower() for name in desk.workload.queries}
    names = sorted({name for names in result.values() for name in names if name.lower() in own})
    clash = (
        (
            f"; of {', '.join(f'`{name}`' for name in names)} only the file captured last "
            "has a sketch"
        )
        if names
        else ""
    )
    yield Subject(Area.STORE, str(desk.store_path)).warning(
        "shared_store",
        f"Other files use this store too: {', '.join(result)}{clash}",
        "give each file a separate `store`, as `impctl init` does",
    )


def _sharers(desk: Workbench) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Other workload files of the folder with this store, and the names of their queries."""
    own, store = Path(desk.workload.file).absolute(), os.path.realpath(desk.store_path)
    near = (file for pattern in ("*.yaml", "*.yml") for file in own.parent.glob(pattern))
    for file in sorted(near)[:_MOST_FILES]:
        if os.path.realpath(file) == os.path.realpath(own):
            continue
        try:
            other = load_workload(file, os.environ)
        except (ImpctlError, OSError):
            continue
        if os.path.realpath(other.store) == store:
            yield file.name, tuple(other.queries)

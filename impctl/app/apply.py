"""Use case: commit update batches of the workload file as new table versions.

Law: the one use case that writes a user's table; each batch is one commit, in the order of the
file, and a batch that fails stops the run, because later ones may build on it.
Out of scope: what a batch may hold (`workload.updates`), how it is written (`tables.updates`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from impctl.app.results import ApplyResult, Failure, Outcome
from impctl.app.workbench import Workbench
from impctl.errors import ImpctlError, UsageError
from impctl.tables.updates import UpdateKind, UpdateRequest, apply_update
from impctl.workload.models import ChangeSpec, DeleteSpec, InsertSpec, UpdateSpec
from impctl.workload.reading import suggestion


def apply(bench: Workbench, names: Sequence[str], *, all_updates: bool) -> Outcome:
    """Commit the batches named, or all of them in file order."""
    wanted = _wanted(bench, names, all_updates)
    results: list[ApplyResult] = []
    for spec in wanted:
        try:
            results.append(_applied(bench, spec))
        except ImpctlError as error:
            if error.location is None:
                error.location = spec.location
            return Outcome(tuple(results), (), (Failure(spec.name, error),))
    return Outcome(tuple(results))


def _wanted(bench: Workbench, names: Sequence[str], all_updates: bool) -> list[UpdateSpec]:
    known = {spec.name: spec for spec in bench.workload.updates}
    if all_updates == bool(names):
        raise UsageError(
            "Name the updates to apply, or give `--all`",
            hint=f"the file has: {', '.join(f'`{name}`' for name in known) or 'none'}",
        )
    for name in names:
        if name not in known:
            raise UsageError(
                f"Update `{name}` is not in {bench.workload.file}",
                code="update_unknown",
                hint=suggestion(name, list(known), "the file has"),
            )
    return list(known.values()) if all_updates else [known[name] for name in names]


def _applied(bench: Workbench, spec: UpdateSpec) -> ApplyResult:
    request = _request(spec)
    bench.reporter.step(f"applying {spec.name}")
    source = bench.source(spec.table)
    if bench.settings.dry_run:
        return ApplyResult(spec.name, spec.table, None, 0, 0, 0)
    done = apply_update(source, request)
    bench.repin(spec.table)
    return ApplyResult(
        spec.name, spec.table, done.version, done.inserted, done.deleted, done.updated
    )


def _request(spec: UpdateSpec) -> UpdateRequest:
    match spec:
        case InsertSpec():
            return UpdateRequest(spec.table, UpdateKind.INSERT, spec.rows, spec.file)
        case DeleteSpec():
            return UpdateRequest(spec.table, UpdateKind.DELETE, where=spec.where)
        case ChangeSpec():
            return UpdateRequest(
                spec.table, UpdateKind.UPDATE, where=spec.where, assignments=spec.assignments
            )
        case _:
            assert_never(spec)

"""Use case: commit update batches of the workload file as new table versions.

Law: the one use case that writes a user's table; each batch is one commit, in the order of the
file, and a batch that fails stops the run, because later ones may build on it. A dry run prepares
batches as a run does and leaves out the commits.
Out of scope: what a batch may hold (`workload.updates`), how it is written (`tables.updates`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from impctl.aliases import TableName
from impctl.app.results import ApplyResult, Failure, Outcome
from impctl.app.workbench import Workbench
from impctl.errors import ImpctlError, UsageError
from impctl.tables.updates import UpdateKind, UpdateRequest, commit_update, prepare_update
from impctl.workload.models import ChangeSpec, DeleteSpec, InsertSpec, UpdateSpec
from impctl.workload.reading import suggestion


def apply(bench: Workbench, names: Sequence[str], *, all_updates: bool) -> Outcome:
    """Commit the batches named, or all of them in file order."""
    wanted = _wanted(bench, names, all_updates)
    results: list[ApplyResult] = []
    ahead: dict[TableName, int] = {}
    for spec in wanted:
        try:
            results.append(_applied(bench, spec, ahead))
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


def _applied(bench: Workbench, spec: UpdateSpec, ahead: dict[TableName, int]) -> ApplyResult:
    """Commit a batch; a dry run counts in `ahead` the versions that it leaves out, by table."""
    request = _request(spec)
    bench.reporter.step(f"applying {spec.name}")
    prepared = prepare_update(bench.source(spec.table), request)
    rows = 0 if prepared.rows is None else len(prepared.rows)
    statement = _statement(spec, rows)
    if bench.settings.dry_run:
        commits = rows > 0 or request.kind is not UpdateKind.INSERT
        ahead[spec.table] = ahead.get(spec.table, 0) + commits
        version = prepared.source.version + ahead[spec.table]
        return ApplyResult(spec.name, spec.table, None, rows, 0, 0, statement, version)
    done = commit_update(prepared)
    bench.repin(spec.table)
    return ApplyResult(
        spec.name, spec.table, done.version, done.inserted, done.deleted, done.updated, statement
    )


def _statement(spec: UpdateSpec, rows: int) -> str:
    """The batch as a statement, in the words of the file."""
    match spec:
        case InsertSpec():
            whence = "" if spec.file is None else f" from {spec.file}"
            return f"INSERT INTO {spec.table}: {rows:,} row{'' if rows == 1 else 's'}{whence}"
        case DeleteSpec():
            return f"DELETE FROM {spec.table}{_where(spec.where)}"
        case ChangeSpec():
            changes = ", ".join(f"{name} = {text}" for name, text in spec.assignments.items())
            return f"UPDATE {spec.table} SET {changes}{_where(spec.where)}"
        case _:
            assert_never(spec)


def _where(condition: str | None) -> str:
    return "" if condition is None else f" WHERE {condition}"


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

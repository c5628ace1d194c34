"""Commit update batches of the workload file as new table versions.

Law: only this command writes a user's table. Each batch is one commit, in file order; a failing
batch stops the run, because later ones may build on it. A batch already in its table is skipped,
and what was committed is reported however the run ends. A dry run prepares batches but does not
commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from impctl.errors import ImpctlError, InterruptedRunError, UsageError, count_text, unexpected
from impctl.service.output import held_signals
from impctl.service.results import ApplyResult, Failure, Outcome
from impctl.tables.write.apply import (
    TargetTable,
    UpdateKind,
    UpdateRequest,
    commit_update,
    prepare_batch,
)
from impctl.workload.models import ChangeSpec, DeleteSpec, InsertSpec, UpdateSpec
from impctl.workload.yaml import suggestion

if TYPE_CHECKING:
    from impctl.service.context import Context
    from impctl.types import TableName


def apply(ctx: Context, names: Sequence[str], *, all_updates: bool, again: bool = False) -> Outcome:
    """Commit the named batches, or all in file order; with `again` also those already applied."""
    requested = _requested(ctx, names, all_updates)
    results: list[ApplyResult] = []
    run = _BatchRun(ctx, again)
    spec: UpdateSpec | None = None
    try:
        for spec in requested:
            run.apply(spec, results)
    except KeyboardInterrupt as stop:
        failures = [Failure(None, _interrupted(results, len(requested)))]
        if spec is not None and isinstance(stop.__context__, ImpctlError):
            failures.append(Failure(spec.name, stop.__context__))  # the commit failed meanwhile
        return Outcome(tuple(results), (), tuple(failures))
    except Exception as error:  # noqa: BLE001  # reports what is in the tables
        failed = error if isinstance(error, ImpctlError) else unexpected(error)
        if failed.location is None and spec is not None:
            failed = failed.at(spec.location)
        return Outcome(tuple(results), (), (Failure(None if spec is None else spec.name, failed),))
    return Outcome(tuple(results))


def _interrupted(results: Sequence[ApplyResult], requested: int) -> InterruptedRunError:
    committed = [r for r in results if r.version is not None and not r.already_applied]
    if not committed:
        return InterruptedRunError(
            "Interrupted before any batch was committed", hint="run the command again"
        )
    names = ", ".join(f"`{r.name}` (version {r.version} of `{r.table}`)" for r in committed)
    return InterruptedRunError(
        f"Interrupted after {len(results)} of {requested} batches; already in the tables: {names}",
        hint="run the command again for the rest; it skips batches that are already applied",
    )


def _requested(ctx: Context, names: Sequence[str], all_updates: bool) -> list[UpdateSpec]:
    known = {spec.name: spec for spec in ctx.workload.updates}
    if all_updates == bool(names):
        raise UsageError(
            "Name the updates to apply, or give `--all`",
            hint=f"the file has: {', '.join(f'`{name}`' for name in known) or 'none'}",
        )
    for name in names:
        if name not in known:
            raise UsageError(
                f"Update `{name}` is not in {ctx.workload.file}",
                code="update_unknown",
                hint=suggestion(name, list(known), "the file has"),
            )
    return list(known.values()) if all_updates else [known[name] for name in names]


class _BatchRun:
    def __init__(self, ctx: Context, again: bool) -> None:
        self._ctx = ctx
        self._again = again
        self._tables: dict[TableName, TargetTable] = {}
        self._ahead: dict[TableName, int] = {}

    def apply(self, spec: UpdateSpec, results: list[ApplyResult]) -> None:
        request = replace(_request(spec), name=spec.name, again=self._again)
        self._ctx.reporter.step(f"applying {spec.name}")
        if spec.table not in self._tables:
            self._tables[spec.table] = TargetTable(self._ctx.tables.opened(spec.table))
        prepared = prepare_batch(self._tables[spec.table], request)
        rows = 0 if prepared.rows is None else len(prepared.rows)
        result = ApplyResult(name=spec.name, table=spec.table, statement=_statement(spec, rows))
        if prepared.in_version is not None:
            results.append(replace(result, version=prepared.in_version, already_applied=True))
            return
        if self._ctx.settings.dry_run:
            commits = rows > 0 or request.kind is not UpdateKind.INSERT
            ahead = self._ahead.get(spec.table, 0) + commits
            self._ahead[spec.table] = ahead
            version = prepared.source.version + ahead
            results.append(replace(result, inserted=rows, planned_version=version))
            return
        with held_signals():
            done = commit_update(prepared)
            results.append(
                replace(
                    result,
                    version=done.version,
                    inserted=done.inserted,
                    deleted=done.deleted,
                    updated=done.updated,
                )
            )


def _statement(spec: UpdateSpec, rows: int) -> str:
    match spec:
        case InsertSpec():
            whence = "" if spec.file is None else f" from {spec.file}"
            return f"INSERT INTO {spec.table}: {count_text(rows, 'row')}{whence}"
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
                spec.table,
                UpdateKind.UPDATE,
                where=spec.where,
                assignments=spec.assignments,
                places=spec.places,
            )
        case _:
            assert_never(spec)

"""What `query` and `rewrite` are asked for: a query as the file has it, or with other constants.

Law: a query with its own constants goes through its own sketch, as ever, or through the one stored
for older versions (`app.using.older_sketch`); only another text or other values look for a sketch
among all of the workload (`app.using.reuse`).
Out of scope: running, rewriting.
"""

from __future__ import annotations

from dataclasses import replace

from impctl.app.preparing.given_values import GivenValues, split_moving, with_parameters
from impctl.app.preparing.prepared import prepare
from impctl.app.results.results import NOT_USED
from impctl.app.using.fresh_sketch import Fresh, fresh, only_query
from impctl.app.using.older_sketch import older
from impctl.app.using.older_versions import AtVersions
from impctl.app.using.reuse import reused
from impctl.app.workbench.workbench import Workbench
from impctl.errors import Location, UsageError
from impctl.workload.models import (
    JoinStrategy,
    MaintainMode,
    Policy,
    QuerySpec,
    SketchUse,
    SqlOrigin,
    SqlRun,
    TextPiece,
)

SQL_NAME = "--sql"
"""What a query given on the command line is called; no query of a file can have this name."""


def asked(
    desk: Workbench,
    query: str | None,
    params: GivenValues,
    sql: str | None,
    at: AtVersions | None = None,
    use: SketchUse = SketchUse.ALWAYS,
) -> Fresh:
    """The query with the sketches to use; UsageError where the wishes exclude each other.

    With `at` they are those stored for these versions, of a query with its own constants. Where
    none are to be used, none is brought up to date.
    """
    if at is not None:
        if params or sql is not None:
            raise UsageError(
                "`--at` excludes `--param` and `--sql`",
                hint="the sketch stored for a version is that of a query with its own constants",
                code="at_and_constants",
            )
        (own,) = desk.queries([query if query is not None else only_query(desk)])
        stored = older(desk, own, at)
        return replace(stored, sketches=(), action=NOT_USED) if use is SketchUse.NEVER else stored
    if sql is not None:
        if query is not None or params:
            raise UsageError(
                "`--sql` excludes `--query` and `--param`",
                hint="write the constants into the SQL text",
                code="sql_and_query",
            )
        spec = _spec_of(sql)
        return _plain(desk, spec) if use is SketchUse.NEVER else reused(desk, spec, None)
    if not params and use is not SketchUse.NEVER:
        return fresh(desk, query)
    name = query if query is not None else only_query(desk)
    (own,) = desk.queries([name])
    moving, params = split_moving(own, params)
    desk.give(moving)
    spec = with_parameters(own, params)
    if use is SketchUse.NEVER:
        return _plain(desk, spec)
    return fresh(desk, name) if spec == own else reused(desk, spec, own)


def _plain(desk: Workbench, spec: QuerySpec) -> Fresh:
    """The query as it is, at the newest versions."""
    prepared = prepare(desk, spec)
    versions = desk.tables.versions_of(prepared.tables)
    return Fresh(prepared=prepared, sketches=(), versions=versions, action=NOT_USED)


def _spec_of(sql: str) -> QuerySpec:
    """The text as a query; places in it are places of `--sql`."""
    runs: list[SqlRun] = []
    offset = 0
    for number, line in enumerate(sql.split("\n"), start=1):
        runs.append(SqlRun(offset, number, 1))
        offset += len(line) + 1
    start = Location(SQL_NAME, 1, 1)
    origin = SqlOrigin(start, tuple(runs), (TextPiece(0, 0, True),))
    return QuerySpec(
        name=SQL_NAME,
        sql=sql,
        sketch={},
        policy=Policy.AUTO,
        maintain=MaintainMode.LAZY,
        join=JoinStrategy.AUTO,
        location=start,
        sql_origin=origin,
    )

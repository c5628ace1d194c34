"""What `query` and `rewrite` are asked for: a query as the file has it, or with other constants.

Law: a query with its own constants goes through its own sketch, as ever, or through the one stored
for older versions (`app.using.older_sketch`); only another text or other values look for a sketch
among all of the workload (`app.using.reuse`). Where there is no sketch the query is answered all
the same (`app.using.without_sketch`), unless one is required.
Out of scope: running, rewriting.
"""

from __future__ import annotations

from dataclasses import replace

from impctl.app.preparing.given_values import GivenValues, split_moving, with_parameters
from impctl.app.results.results import NO_SKETCH, NOT_USED
from impctl.app.results.unsketched import ASKED_FOR_NONE
from impctl.app.using.fresh_sketch import Fresh, fresh
from impctl.app.using.older_sketch import older
from impctl.app.using.older_versions import AtVersions
from impctl.app.using.only_query import only_query
from impctl.app.using.reuse import reused
from impctl.app.using.unread import Unread
from impctl.app.using.without_sketch import is_of_the_sketch, plain, why_none, without_sketch
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError, Location, UnsafeSketchError, UsageError
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
    *,
    required: bool = False,
) -> Fresh | Unread:
    """The query with the sketches to use; UsageError where the wishes exclude each other.

    With `at` they are those stored for these versions, of a query with its own constants. Where
    none are to be used, none is brought up to date. Where none can be had the query comes without,
    and with a warning; with `required` what is in the way is raised.
    """
    if required and use is SketchUse.NEVER:
        raise UsageError(
            "`--require-sketch` excludes `--sketch never`",
            hint="give one of them",
            code="sketch_and_never",
        )
    if at is not None:
        return _older(desk, query, params, sql, at, use)
    spec, own = _wanted(desk, query, params, sql)
    if use is SketchUse.NEVER:
        return plain(desk, spec)
    if not spec.is_sketched and not required:
        return replace(plain(desk, spec), action=NO_SKETCH, reason=ASKED_FOR_NONE)
    try:
        if not spec.is_sketched:
            raise _asked_for_none(spec)
        result = fresh(desk, spec.name) if spec == own else reused(desk, spec, own)
        if required and not result.sketches:
            raise _none_serves(spec, result)
        return result
    except ImpctlError as error:
        if required:
            raise why_none(desk, spec, error) from None
        if not is_of_the_sketch(error):
            raise
        return without_sketch(desk, spec, error)


def _older(
    desk: Workbench,
    query: str | None,
    params: GivenValues,
    sql: str | None,
    at: AtVersions,
    use: SketchUse,
) -> Fresh:
    """The query with the sketch stored for older versions: asked for by version, or an error."""
    if params or sql is not None:
        raise UsageError(
            "`--at` excludes `--param` and `--sql`",
            hint="the sketch stored for a version belongs to a query with its own constants",
            code="at_and_constants",
        )
    (own,) = desk.queries([query if query is not None else only_query(desk)])
    stored = older(desk, own, at)
    return replace(stored, sketches=(), action=NOT_USED) if use is SketchUse.NEVER else stored


def _wanted(
    desk: Workbench, query: str | None, params: GivenValues, sql: str | None
) -> tuple[QuerySpec, QuerySpec | None]:
    """The query that is asked, and the one of the file that it is or is an instance of."""
    if sql is None:
        (own,) = desk.queries([query if query is not None else only_query(desk)])
        moving, others = split_moving(own, params)
        desk.give(moving)
        return with_parameters(own, others), own
    if query is not None or params:
        raise UsageError(
            "`--sql` excludes `--query` and `--param`",
            hint="write the constants into the SQL text",
            code="sql_and_query",
        )
    return _spec_of(sql), None


def _asked_for_none(spec: QuerySpec) -> UnsafeSketchError:
    return UnsafeSketchError(
        f"Query `{spec.name}` has `sketch: none` in the workload file",
        hint="remove `sketch: none` and capture it, or run it without `--require-sketch`",
        code="sketch_required",
        location=spec.location,
    )


def _none_serves(spec: QuerySpec, result: Fresh) -> UnsafeSketchError:
    """The error where no query's sketch serves these constants."""
    looked = () if result.reuse is None else result.reuse.candidates
    why = "; ".join(f"`{entry.query}`: {entry.reason}" for entry in looked)
    reason = "no sketch is stored for it" if result.reuse is None else result.reuse.reason
    return UnsafeSketchError(
        f"Query `{spec.name}` has no usable sketch: {why or reason}",
        hint="capture it under its own name, or run it without `--require-sketch`",
        code="sketch_required",
        location=spec.location,
    )


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

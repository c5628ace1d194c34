"""A query that impctl cannot read but Spark can: run as it stands over pinned tables.

Law: the text is the user's own, parameters filled in, and surely one query; the tables it names
are those of the workload, at the pinned versions, read whole. Nothing is known of it but that.
Out of scope: queries that can be read (`app.using.fresh_sketch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from impctl.app.preparing.prepared import column_like_clock
from impctl.app.results.results import NOT_USED
from impctl.app.using.answers import with_one_schema
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError, NotReadError, QueryError
from impctl.sql.parameters import bind
from impctl.sql.views import named_tables
from impctl.types import TableName, TableVersion
from impctl.values import dataclass
from impctl.workload.models import QuerySpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """The text to run, the versions of the tables it reads, and what impctl does not read in it."""

    spec: QuerySpec
    sql: str
    versions: Mapping[TableName, TableVersion]
    refusal: NotReadError
    action: str = NOT_USED
    reason: str = ""
    warnings: tuple[str, ...] = ()

    def files(self, desk: Workbench) -> int:
        """Files of the tables, all of which are read."""
        return sum(len(desk.tables.snapshot(t, at).files) for t, at in self.versions.items())


def unread(desk: Workbench, spec: QuerySpec, error: ImpctlError) -> Unread:
    """The query as it stands; `error`, which says what was not read, where that would be a guess.

    Only what is refused for a construct goes on: what Spark refuses too is told better here.
    """
    if not isinstance(error, NotReadError):
        raise error
    follows = spec.follows
    bound = bind(spec.sql, spec.params, name=spec.name, clock=desk.clock, follows=follows)
    try:
        tables = named_tables(bound.sql, desk.workload.tables, name=spec.name)
    except QueryError:
        raise error from None
    if not tables or column_like_clock(desk.tables, bound, tables) is not None:
        raise error
    for table in tables:
        if desk.workload.tables[table].expiry is not None:
            raise error.hinting(
                f"rows of table `{table}` expire, which impctl handles only in queries it "
                "can read; rewrite the query without the unsupported part, or list the "
                "table a second time without `expiry`"
            )
    versions = desk.tables.versions_of(tables)
    return Unread(spec=spec, sql=bound.sql, versions=versions, refusal=error)


def unread_table(desk: Workbench, result: Unread) -> pa.Table:
    """The answer as Arrow."""
    from impctl.spark.run import run_sql

    table = run_sql(desk.spark(), result.sql, _views(desk, result), versions=result.versions)
    return with_one_schema(table, desk.session_zone)


def unread_frame(desk: Workbench, result: Unread) -> DataFrame:
    """The answer as a frame that Spark computes when it is asked for rows."""
    from impctl.spark.run import frame_of

    return frame_of(desk.spark(), result.sql, _views(desk, result), versions=result.versions)


def _views(desk: Workbench, result: Unread) -> dict[TableName, DataFrame]:
    from impctl.spark.snapshots import snapshot_frame

    return {
        table: snapshot_frame(desk.spark(), desk.tables.snapshot(table, at), is_guarded=True)
        for table, at in result.versions.items()
    }

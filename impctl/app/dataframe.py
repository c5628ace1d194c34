"""Use case: a query through its sketch as a Spark DataFrame, for programs that go on with it.

Law: the frame stands for the query's answer at the versions that were pinned when it was made,
whenever it is computed; a data file that is gone by then is an error, never fewer rows. Nobody can
try again without the sketch, so it is left away where the query might fail only because of it.
Out of scope: computing it (`app.query` does, at once).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from impctl.app.preparing.given_values import GivenValues
from impctl.app.using.answers import answer_frame
from impctl.app.using.in_part import never_failing
from impctl.app.using.older_versions import AtVersions
from impctl.app.using.recorded import record_use
from impctl.app.using.request import asked
from impctl.app.using.unread import Unread, unread_frame
from impctl.app.using.worth import what_is_read
from impctl.app.workbench.workbench import Workbench
from impctl.values import dataclass
from impctl.workload.models import SketchUse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Framed:
    """The frame, and what to know about it."""

    frame: DataFrame
    warnings: tuple[str, ...]


def dataframe(
    desk: Workbench,
    query: str | None,
    params: GivenValues = (),
    sql: str | None = None,
    at: AtVersions | None = None,
    use: SketchUse = SketchUse.AUTO,
    *,
    required: bool = False,
) -> Framed:
    """The frame of one query; arguments as for `app.query`."""
    result = asked(desk, query, params, sql, at, use, required=required)
    if isinstance(result, Unread):
        return Framed(unread_frame(desk, result), result.warnings)
    result = never_failing(desk.tables, result, required=required)
    read = what_is_read(desk.tables, result, use)
    frame = answer_frame(desk, result.prepared, result.versions, read.pruned, result.sketches)
    record_use(desk, result, read.pruned, read.plain, command="dataframe")
    return Framed(frame, result.warnings)

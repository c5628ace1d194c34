"""Sketches captured in Spark, and nothing else with them.

Law: the answer is the accurate sketch of every access, by the cheapest pass that gives it
(`capture.annotate`). Only distinct fragment ids and the keys of surviving groups reach the driver.
Out of scope: operator state (`maintain.partials`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from impctl.aliases import AccessId, TableName, TableVersion
from impctl.capture.annotate import (
    FRAGMENT,
    STAGED,
    SketchPass,
    Way,
    sketch_query,
    staged_name,
)
from impctl.capture.render import render_plan
from impctl.data.schema import Column as TableColumn
from impctl.data.schema import Kind
from impctl.data.vector import from_arrow
from impctl.errors import UsageError
from impctl.plan.nodes import Join, Plan, Query, attributes_of, nodes_of, scans_of
from impctl.plan.safety import Verdict
from impctl.sketch.fragments import FragmentSet
from impctl.sketch.partition import RangePartition
from impctl.spark.failures import plain_failures
from impctl.spark.fragments import with_fragment
from impctl.spark.run import temporary_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_BROADCAST_GROUPS = 2_000_000
"""Above, Spark chooses how to join by itself."""

_STAGED_VIEW = "impctl_staged"
_RETURNING = frozenset(
    {
        Kind.BOOLEAN,
        Kind.BYTE,
        Kind.SHORT,
        Kind.INTEGER,
        Kind.LONG,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.DECIMAL,
        Kind.STRING,
        Kind.BINARY,
        Kind.DATE,
        Kind.TIMESTAMP,
    }
)
"""Types of group keys that come back from the driver as they went there."""


def capture_sketches(
    spark: SparkSession,
    query: Query,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    frames: Mapping[AccessId, DataFrame],
    *,
    versions: Mapping[TableName, TableVersion] | None = None,
) -> dict[AccessId, FragmentSet]:
    """The fragments that the query needs of each access in `partitions`.

    `verdict` is that of this very query; `frames` holds the rows of every access, those of sketched
    ones with their partition attribute. Raises what `sketch_query` and running it in Spark raise.
    """
    for access, partition in partitions.items():
        _require_attribute(frames[access], access, partition)
    capture = _Capture(spark, frames, _view_names(query.root))
    found: dict[AccessId, FragmentSet] = {}
    for access, partition in partitions.items():
        column = TableColumn(partition.attribute, partition.type)
        ids: set[int] = set()
        with plain_failures(versions):
            for pass_ in sketch_query(query, verdict, access, column).passes:
                ids |= capture.fragments(pass_, partition)
        found[access] = FragmentSet.of(sorted(ids), partition.size)
    return found


def _require_attribute(frame: DataFrame, access: AccessId, partition: RangePartition) -> None:
    if partition.attribute.lower() not in (name.lower() for name in frame.columns):
        raise UsageError(
            f"The rows of `{access}` lack the partition attribute `{partition.attribute}`",
            code="partition_attribute_missing",
            hint="read the attribute together with the columns of the query",
        )


def _view_names(root: Plan) -> dict[AccessId, str]:
    return {scan.access: f"impctl_view{place}" for place, scan in enumerate(scans_of(root))}


@dataclass(frozen=True, slots=True)
class _Capture:
    spark: SparkSession
    frames: Mapping[AccessId, DataFrame]
    views: Mapping[AccessId, str]

    def fragments(self, pass_: SketchPass, partition: RangePartition) -> set[int]:
        """Distinct fragment ids of one pass."""
        match pass_.way:
            case Way.KEYED:
                return self._of_keys(pass_, partition)
            case Way.GROUPS:
                return self._of_groups(pass_, partition)
        rows = self._rows(pass_, partition)
        if pass_.above is not None:
            with temporary_views(self.spark, {_STAGED_VIEW: rows}):
                rows = self._frame(pass_.above, {**self.views, STAGED: _STAGED_VIEW})
        return _ids(rows.select(rows.columns[-1]).distinct())

    def _of_keys(self, pass_: SketchPass, partition: RangePartition) -> set[int]:
        """The keys are at most as many as result rows, so they are mapped without Spark."""
        at = [attribute.id for attribute in attributes_of(pass_.rows)].index(pass_.key)
        rows = self._frame(pass_.rows, self.views)
        keys = rows.toDF(*map(staged_name, range(len(rows.columns)))).select(staged_name(at))
        if any(isinstance(node, Join) for node in nodes_of(pass_.rows)):
            keys = keys.distinct()
        found = partition.fragments_of(from_arrow(keys.toArrow().column(0), partition.type))
        return {int(fragment) for fragment in np.unique(found)}

    def _of_groups(self, pass_: SketchPass, partition: RangePartition) -> set[int]:
        """Joining on `=` is far cheaper than on `<=>`, so NULL keys are looked for first."""
        from pyspark.sql import functions as F

        assert pass_.groups is not None
        groups = self._frame(pass_.groups, self.views)
        names = [f"g{place}" for place in range(len(pass_.group))]
        groups, null_free = self._fetched(groups.toDF(*names) if names else groups, pass_)
        if null_free is None:
            return set()
        rows = self._rows(pass_, partition)
        own = [a.id for a in attributes_of(pass_.rows)]
        condition = F.lit(True)
        for name, group in zip(names, pass_.group, strict=True):
            mine, theirs = F.col(staged_name(own.index(group))), F.col(name)
            same = mine == theirs if name in null_free else mine.eqNullSafe(theirs)
            condition = condition & same
        kept = rows.join(groups, condition, "left_semi") if names else rows
        return _ids(kept.select(f"`{FRAGMENT}`").distinct())

    def _fetched(
        self, groups: DataFrame, pass_: SketchPass
    ) -> tuple[DataFrame, frozenset[str] | None]:
        """The groups, found once, and their columns without NULL; None for no groups at all."""
        from pyspark.sql.functions import broadcast

        assert pass_.groups is not None
        if not pass_.group:
            # One global group, which a filter above it may have dropped.
            return groups, None if groups.count() == 0 else frozenset()
        kinds = [a.type.kind if a.type is not None else None for a in attributes_of(pass_.groups)]
        if not all(kind in _RETURNING for kind in kinds):
            return groups, frozenset()
        if any(isinstance(node, Join) for node in nodes_of(pass_.groups)):
            groups = groups.distinct()
        answer = groups.toArrow()
        if answer.num_rows == 0:
            return groups, None
        null_free = frozenset(n for n in answer.column_names if answer[n].null_count == 0)
        fetched = self.spark.createDataFrame(answer, groups.schema)
        few = answer.num_rows <= MAX_BROADCAST_GROUPS
        return (broadcast(fetched) if few else fetched), null_free

    def _rows(self, pass_: SketchPass, partition: RangePartition) -> DataFrame:
        """The pass's rows under their staged names, with their fragments."""
        rows = self._frame(pass_.rows, self.views)
        rows = rows.toDF(*(staged_name(place) for place in range(len(rows.columns))))
        own = [attribute.id for attribute in attributes_of(pass_.rows)]
        return with_fragment(rows, partition, staged_name(own.index(pass_.key)), FRAGMENT)

    def _frame(self, plan: Plan, views: Mapping[AccessId, str]) -> DataFrame:
        read = {scan.access for scan in scans_of(plan)} & self.frames.keys()
        with temporary_views(self.spark, {self.views[a]: self.frames[a] for a in read}):
            return self.spark.sql(render_plan(plan, views).sql)


def _ids(fragments: DataFrame) -> set[int]:
    found = fragments.toArrow().column(0).to_pylist()
    return {fragment for fragment in found if fragment is not None}

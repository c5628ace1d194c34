"""Where the text that is planned came from: the query's own, views put in, parameters given values.

Law: a place in the text leads to the one in the workload file, in a view's text too.
Out of scope: making the text (`app.preparing.prepared`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from impctl.errors import ImpctlError, Location, UsageError
from impctl.sql.names import FullName
from impctl.sql.parameters import BoundSql
from impctl.sql.views import ExpandedSql, called_in_messages
from impctl.values import dataclass
from impctl.workload.models import QuerySpec, ViewSpec
from impctl.workload.yaml import offset_location, sql_location


@dataclass(frozen=True, slots=True)
class QuerySource:
    """The query, the file's views, and what was made of the text so far."""

    spec: QuerySpec
    views: Mapping[FullName, ViewSpec] = field(default_factory=dict)
    expanded: ExpandedSql | None = None
    bound: BoundSql | None = None

    def place(self, line: int, column: int) -> Location:
        """Where line and column of the newest text stand in the workload file."""
        if self.bound is not None:
            line, column = self.bound.written_at(line, column)
        if self.expanded is None or not self.expanded.stretches:
            return sql_location(self.spec, line, column)
        name, offset = self.expanded.written_at(line, column)
        owner = next((view for view in self.views.values() if view.name == name), self.spec)
        return offset_location(owner, offset)

    def placed(self, error: ImpctlError) -> ImpctlError:
        """The error at its place in the workload file."""
        place = error.location
        if place is None:
            return error.at(self.spec.location) if isinstance(error, UsageError) else error
        if place.file == f"query `{self.spec.name}`":
            return error.at(self.place(place.line, place.column))
        for view in self.views.values():
            if place.file == f"query `{called_in_messages(view.name)}`":
                return error.at(sql_location(view, place.line, place.column))
        return error

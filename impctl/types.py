"""Shared type names, so that a signature says what an integer or a string means."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

TableName = str
"""Name of a table as the workload file spells it."""

ColumnName = str
"""Name of a column as the Delta schema spells it."""

QueryName = str
"""Name of a query as the workload file spells it."""

TableVersion = int
"""Version number of a Delta table, 0 and up."""

AttributeId = str
"""Identity of a column inside one plan, unique over the whole plan (`sales#1.price`)."""

AccessId = str
"""Identity of one occurrence of a table in a query (`sales#1`)."""

FixpointId = str
"""Identity of a recursive WITH entry in a query: its name, or `name:2` if another has it."""

ParameterValue = bool | int | float | Decimal | str | date | datetime
"""A value for a named parameter of a query; its Python type is the type of the literal."""


class Secrets(dict[str, str]):
    """Options that may hold credentials; the representation shows their names only."""

    def __repr__(self) -> str:
        return f"<values of {', '.join(self) or 'nothing'}>"

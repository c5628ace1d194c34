"""`VALUES (1, 'a'), (2, 'b')`: rows written into the text, as so many SELECTs without FROM.

Law: the relation is `SELECT 1 AS col1, 'a' AS col2 UNION ALL SELECT 2, 'b'`, which Spark gives the
same names and rows. Values of a column have one type, or are NULL: where they do not, what Spark
takes is refused, since it is not what UNION takes. Rows are put together as a tree, so that plans
are no deeper for many.
Out of scope: aliases (`plan.sql.relation`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from impctl.data.schema import Kind
from impctl.plan.nodes import Plan, attributes_of
from impctl.plan.sql.text import SqlText

MOST_ROWS = 200
"""An operator or two each; more belong in a table."""


def read_values(node: exp.Values, text: SqlText, read: Callable[[exp.Expression], Plan]) -> Plan:
    """The plan of the rows, by the way to `read` a query; QueryError for what is not read."""
    rows = [_values_of(row) for row in node.expressions]
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise text.error(
            f"The rows of VALUES have different numbers of values, from {min(widths)} to "
            f"{max(widths)}",
            node,
            hint="write the same number of values in each row",
        )
    if len(rows) > MOST_ROWS:
        raise text.unsupported(
            f"VALUES of more than {MOST_ROWS} rows", node, hint="store them in a table"
        )
    for value in (value for row in rows for value in row):
        if isinstance(value, exp.Alias):
            raise text.unsupported(
                "an alias inside VALUES",
                value,
                hint="put parentheses around each row: `(VALUES (1), (2)) AS v(n)`",
            )
    selects = [_selected(row) for row in rows]
    _refuse_types(selects, node, text, read)
    return read(_together(selects))


def _values_of(row: exp.Expression) -> Sequence[exp.Expression]:
    return row.expressions if isinstance(row, exp.Tuple) else [row]


def _selected(row: Sequence[exp.Expression]) -> exp.Expression:
    items = (
        exp.Alias(this=value, alias=exp.to_identifier(f"col{place}"))
        for place, value in enumerate(row, start=1)
    )
    return exp.Select(expressions=list(items))


def _together(rows: Sequence[exp.Expression]) -> exp.Expression:
    if len(rows) == 1:
        return rows[0]
    half = len(rows) // 2
    # In brackets, as a set operation on the right side of another one is.
    right = exp.Subquery(this=_together(rows[half:]))
    return exp.Union(this=_together(rows[:half]), expression=right, distinct=False)


def _refuse_types(
    selects: Sequence[exp.Expression],
    node: exp.Values,
    text: SqlText,
    read: Callable[[exp.Expression], Plan],
) -> None:
    """QueryError where values of a column have several types; NULL has none."""
    rows = [attributes_of(read(one)) for one in selects]
    for place, column in enumerate(zip(*rows, strict=True), start=1):
        result = {attribute.type for attribute in column}
        kinds = {kind for kind in result if kind is not None and kind.kind is not Kind.NULL}
        if len(kinds) > 1:
            named = " and ".join(f"`{kind}`" for kind in sorted(map(str, kinds)))
            raise text.unsupported(
                f"VALUES with {named} in column {place}",
                node,
                hint="cast the values to one type",
            )

"""A materialized view kept by hand: the groups of a query with their sums, which insertions change.

Law: the view has what the query's select list and HAVING ask of each group, whether it passes or
not, so that a change of what passes needs no other look at the table. Insertions are added group by
group; deletions are nobody's matter here, as they are not where people keep such a view. Only for a
SELECT over one table that groups by columns and has SUM, COUNT, MIN, MAX and AVG of columns; it may
have an order and a LIMIT, which are asked of the view.
Out of scope: running a text (the caller's matter).
"""

from __future__ import annotations

import pyarrow as pa
from msgspec import Struct
from sqlglot import exp, parse_one

from impctl.spark.expressions import DIALECT

VIEW = "kept_view"
"""The name under which `through` reads the view."""

_MERGED = {exp.Sum: "sum", exp.Count: "sum", exp.Min: "min", exp.Max: "max"}
_ARROW = {exp.Sum: "sum", exp.Count: "count", exp.Min: "min", exp.Max: "max"}


class _Figure(Struct, frozen=True):
    """A column of the view: what it is of which column of the table, and how two are made one."""

    name: str
    call: exp.AggFunc

    @property
    def column(self) -> str:
        return self.call.this.name if isinstance(self.call.this, exp.Column) else ""


class KeptView(Struct, frozen=True):
    """The SELECT that makes the view, the query through it, and how it is brought on."""

    definition: str
    through: str
    keys: tuple[str, ...]
    figures: tuple[_Figure, ...]

    def added(self, view: pa.Table, rows: pa.Table) -> pa.Table:
        """The view after these rows were inserted."""
        aggregates = [
            (figure.column or self.keys[0], _ARROW[type(figure.call)]) for figure in self.figures
        ]
        change = rows.group_by(list(self.keys)).aggregate(aggregates)
        names = [figure.name for figure in self.figures]
        change = change.select([f"{column}_{how}" for column, how in aggregates] + list(self.keys))
        change = change.rename_columns([*names, *self.keys]).select([*self.keys, *names])
        both = pa.concat_tables([view, change.cast(view.schema)])
        merged = [(figure.name, _MERGED[type(figure.call)]) for figure in self.figures]
        result = both.group_by(list(self.keys)).aggregate(merged)
        result = result.select([*self.keys, *(f"{name}_{how}" for name, how in merged)])
        return result.rename_columns(view.column_names)


def kept_view(sql: str) -> KeptView | None:
    """The view for a query; None where it is none that people keep by hand like this."""
    select = parse_one(sql, dialect=DIALECT)
    if not isinstance(select, exp.Select) or not _is_plain(select):
        return None
    keys = tuple(key.name for key in select.args["group"].expressions)
    figures: dict[str, _Figure] = {}
    through = select.copy()
    through.set("group", None)
    for call in list(through.find_all(exp.AggFunc)):
        through_call = _through(call, figures)
        if through_call is None:
            return None
        call.replace(through_call)
    having = through.args.pop("having", None)
    if having is not None:
        through.set("where", exp.Where(this=having.this))
    through.set("from_" if "from_" in select.args else "from", exp.From(this=exp.to_table(VIEW)))
    named = [exp.alias_(figure.call, figure.name) for figure in figures.values()]
    definition = exp.select(*keys, *named).from_(_table(select)).group_by(*keys)
    texts = (definition.sql(DIALECT), through.sql(DIALECT))
    return KeptView(*texts, keys, tuple(figures.values()))


def _is_plain(select: exp.Select) -> bool:
    group = select.args.get("group")
    if group is None or not all(isinstance(key, exp.Column) for key in group.expressions):
        return False
    return not any(select.args.get(clause) for clause in ("joins", "where", "windows", "distinct"))


def _table(select: exp.Select) -> exp.Expression:
    result = select.find(exp.Table)
    assert result is not None
    return result


def _through(call: exp.AggFunc, figures: dict[str, _Figure]) -> exp.Expression | None:
    """What stands for a call over the view, whose figures are added to; None for any other call."""
    if not isinstance(call.this, exp.Column | exp.Star):
        return None
    if isinstance(call, exp.Avg):
        total = _figure(exp.Sum(this=call.this.copy()), figures)
        count = _figure(exp.Count(this=call.this.copy()), figures)
        return exp.paren(exp.Div(this=exp.column(total), expression=exp.column(count)))
    return exp.column(_figure(call.copy(), figures)) if type(call) in _MERGED else None


def _figure(call: exp.AggFunc, figures: dict[str, _Figure]) -> str:
    return figures.setdefault(call.sql(DIALECT), _Figure(f"figure_{len(figures)}", call)).name

"""Splits a plan into rows to materialize and final steps that compute the result from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from operator import methodcaller
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import Kind, SqlType
from impctl.expr.nodes import And, ArithmeticOp, Clause, CompareOp, Expr
from impctl.plan import nodes as p


class FirstRows(Clause, frozen=True):
    """The first `count` rows (None: all) by an order, without the first `offset`."""

    order: tuple[p.SortKey, ...]
    count: int | None
    offset: int = 0


class FinalSteps(Clause, frozen=True):
    """Final steps over rows with `columns`, which its expressions read: filter by `predicates`, cut
    by `first`, `order`, `limit`, output. Stored beside the rows, it suffices to return the result
    without the plan."""

    columns: tuple[p.Attribute, ...]
    predicates: tuple[Expr, ...]
    first: FirstRows | None
    order: tuple[p.SortKey, ...]
    limit: int | None
    outputs: tuple[p.ComputedColumn, ...]

    @property
    def values(self) -> tuple[Expr, ...]:
        """Expressions that order and output the rows."""
        keys = self.order if self.first is None else (*self.order, *self.first.order)
        return (*(key.expr for key in keys), *(output.expr for output in self.outputs))

    @property
    def cuts(self) -> bool:
        """Whether it takes the first rows by an order, with ties."""
        return self.first is not None and bool(self.first.order) and self.first.count is not None

    @property
    def is_cut(self) -> bool:
        """Whether other rows decide whether a row is in the result."""
        return self.first is not None or self.limit is not None


# Final steps as JSON and back, without spans. Law: reading returns an equal value, or raises
# ValueError for anything that was not written here; only the listed classes are constructed.

Written = Any
"""JSON form: None, a Boolean, a string, a list; numbers and records are tagged lists."""
_CLASSES = (
    FinalSteps,
    FirstRows,
    p.SortKey,
    p.Attribute,
    p.ComputedColumn,
    SqlType,
    *get_args(Expr),
)
_RECORDS: Mapping[str, type[Struct]] = {record.__name__: record for record in _CLASSES}
_WRITERS: Mapping[type, Callable[[Any], str]] = {
    int: str,
    float: float.hex,
    Decimal: str,
    bytes: bytes.hex,
    **dict.fromkeys((Kind, ArithmeticOp, CompareOp), str),
}
_READERS: Mapping[str, Callable[[str], Any]] = {
    **{kind.__name__: kind for kind in _WRITERS},
    "float": float.fromhex,
    "bytes": bytes.fromhex,
}


def written_ending(ending: FinalSteps) -> Written:
    """The final steps as JSON; TypeError for a value of an unknown class."""
    return _written(ending)


def read_ending(written: Written) -> FinalSteps:
    """Read what `written_ending` wrote; ValueError for anything else."""
    try:
        result = _read(written)
    except (TypeError, ValueError, LookupError, InvalidOperation) as error:
        raise ValueError("not the end of a plan") from error
    if not isinstance(result, FinalSteps):
        raise ValueError("not the end of a plan")
    return result


def _written(value: object) -> Written:
    kind = type(value)
    name = kind.__name__
    if value is None or kind in (bool, str):
        return value
    if kind is tuple:
        return ["tuple", *map(_written, value)]  # type: ignore[call-overload]  # a tuple
    if kind in _WRITERS:
        return [name, _WRITERS[kind](value)]
    if _RECORDS.get(name) is kind:
        return [name, *(_written(getattr(value, field)) for field in _fields(name))]
    raise TypeError(f"cannot write a {name}")


def _read(written: Written) -> Any:
    if written is None or isinstance(written, bool | str):
        return written
    if not isinstance(written, list):
        raise TypeError("neither a value nor a record")
    name, *parts = written
    if name == "tuple":
        return tuple(map(_read, parts))
    if name in _RECORDS:
        values = zip(_fields(name), map(_read, parts), strict=True)
        return _RECORDS[name](**dict(values))
    (text,) = parts
    return _READERS[name](text)


@lru_cache
def _fields(name: str) -> tuple[str, ...]:
    return tuple(field for field in _RECORDS[name].__struct_fields__ if field != "span")


class AnswerPlan(Struct, frozen=True):
    """The plan of the rows to materialize, and the final steps over them.

    The rows may be more than those of `kept` if a condition or the last rank of a top-k is too
    close to decide: the final steps are evaluated again, by value. So only nodes from `decided`
    down must be certain."""

    kept: p.Plan
    ending: FinalSteps

    @property
    def decided(self) -> p.Plan:
        """The node of `kept` whose rows must be certain: everything above it is evaluated again."""
        return _split(self.kept, passes_top=self.ending.cuts)[0]


def answer_plan(query: p.Query) -> AnswerPlan:
    """Split the query's plan (after the rules) into rows and final steps."""
    from impctl.rules.optimize import apply_rules

    node, end = _split(query.root)
    used = frozenset().union(*(expr.columns for expr in end.expressions))
    columns = p.ComputedColumn.unchanged(a for a in node.attributes if a.id in used)
    if end.predicates:
        node = p.Select(node, And(end.predicates))
    first = end.first
    if first is not None and end.cuts:
        node = p.TopK(node, first.order, first.count, first.offset)
    rows = apply_rules(p.Project(node, columns))
    order = end.order if end.order or first is None else first.order
    return AnswerPlan(rows, replace(end, columns=rows.attributes, order=order, limit=query.cut))


def _split(root: p.Plan, *, passes_top: bool = True) -> tuple[p.Plan, FinalSteps]:
    """The last grouping, join or inner LIMIT, and what is above it. Without `passes_top` no LIMIT
    is above it."""
    node = root
    end = FinalSteps((), (), None, (), None, p.ComputedColumn.unchanged(root.attributes))
    while True:
        match node:
            case p.Project():
                exprs = {output.attribute.id: output.expr for output in node.outputs}
                end = end.map(methodcaller("substitute", exprs))
            case p.Sort():
                # An order below another or below a LIMIT has no effect.
                is_shown = not end.order and end.first is None
                end = replace(end, order=node.order) if is_shown else end
            case p.TopK(rank=None) if (
                # There is no LIMIT or condition above it.
                passes_top and end.first is None and not end.predicates
            ):
                end = replace(end, first=FirstRows(node.order, node.count, node.offset))
            case p.Select():
                end = replace(end, predicates=(node.predicate, *end.predicates))
            case _:
                return node, end
        node = node.child

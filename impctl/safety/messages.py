"""How messages name parts of a query; these texts decide nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from impctl.expr.nodes import Call, ColumnRef, Expr, IsNull, Span
from impctl.expr.signature import ONE_ROW
from impctl.plan import nodes as p
from impctl.plan.explain import shortened
from impctl.safety.direction import Objection, Relation

if TYPE_CHECKING:
    from impctl.types import AttributeId

_LONGEST = 60


class Wording(Struct, frozen=True):
    """The SQL text and a name for each column that has one worth showing."""

    sql: str
    names: dict[AttributeId, str]

    @classmethod
    def of(cls, sql: str, root: p.Plan) -> Wording:
        """Names from the plan: columns by name, aggregates by their call in the text."""
        wording = cls(sql, {})
        for node in reversed(list(root.walk())):
            match node:
                case p.Scan() | p.Recursive() | p.Fixpoint():
                    wording.names.update((a.id, a.name) for a in node.attributes)
                case p.Project():
                    wording.names.update(
                        (o.attribute.id, wording.text(o.expr)) for o in node.outputs
                    )
                case p.Aggregate():
                    wording.names.update((k.attribute.id, wording.text(k.expr)) for k in node.keys)
                    wording.names.update((o.attribute.id, wording.call(o)) for o in node.aggregates)
                case _:
                    pass
        return wording

    def text(self, expr: Expr) -> str:
        """The expression as the query spells it, or its columns."""
        if isinstance(expr, ColumnRef) and expr.id in self.names:
            return self.names[expr.id]
        return self.slice(expr.span) or self._columns(expr)

    def call(self, output: p.AggregateOutput) -> str:
        """An aggregate call as the query spells it."""
        call = output.call
        if text := self.slice(call.span):
            return text
        arguments = ", ".join(self.text(argument) for argument in call.arguments)
        return f"{call.function}({'DISTINCT ' if call.distinct else ''}{arguments or '*'})"

    def slice(self, span: Span | None) -> str:
        """The SQL text of a span on one line; empty without one."""
        if span is None or span.end > len(self.sql) or span.start >= span.end:
            return ""
        return shortened(" ".join(self.sql[span.start : span.end].split()), _LONGEST)

    def _columns(self, expr: Expr) -> str:
        if not expr.expressions:
            return str(getattr(expr, "value", getattr(expr, "id", "expression")))
        return ", ".join(dict.fromkeys(self.names.get(c, c) for c in sorted(expr.columns)))


def condition_name(node: p.Select) -> str:
    """The user's name for this condition."""
    below: p.Plan = node.child
    while isinstance(below, p.Project | p.Select):
        below = below.child
    return "HAVING" if isinstance(below, p.Aggregate) else "WHERE"


def difference(relation: Relation) -> str:
    """How a value over part of its rows compares with the value over all of them."""
    match relation:
        case Relation.AT_MOST:
            how = "smaller"
        case Relation.AT_LEAST:
            how = "larger"
        case Relation.UNKNOWN | Relation.EQUAL:
            how = "larger or smaller"
    return f"can be {how} over part of a group than over all of it"


def objection_text(
    subject: str, objection: Objection, causes: Mapping[AttributeId, str], wording: Wording
) -> str:
    """Why a condition is not preserved, as one sentence."""
    text = wording.text(objection.operand)
    if isinstance(objection.atom, Call) and objection.atom.name == ONE_ROW:
        return (
            f"`{text}` must return at most one row, and may return fewer rows over part of its "
            "table"
        )
    if isinstance(objection.atom, IsNull):
        return (
            f"{subject} tests `{text}` for NULL, and it can be NULL over part of a group but not "
            "over all of it"
        )
    sentence = f"{subject} compares `{text}`, which {difference(objection.relation)}"
    known = [causes[c] for c in sorted(objection.operand.columns) if c in causes]
    return f"{sentence}, because {known[0]}" if known else sentence

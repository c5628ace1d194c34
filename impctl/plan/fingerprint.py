"""A hash that identifies a plan.

Law: equal for texts that parse to the same plan, whatever their whitespace, letter case of
keywords, aliases, column names of the result, or spans; different if tables, columns, types,
constants or operators differ. Columns are numbered in the order the plan makes them. The hash of a
template omits only constants of conditions and counts of LIMIT, so it is equal for all instances of
a parametrized query, in any order of their conditions. Equivalent plans may have different hashes.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, assert_never

from impctl.expr import nodes as e
from impctl.plan import nodes as p

if TYPE_CHECKING:
    from impctl.types import AttributeId, FixpointId

_FORMAT = "plan 1"
_TEMPLATE = "template 1"
_SLOT = "?"


def fingerprint(root: p.Plan) -> str:
    """SHA-256 of the plan's meaning, in hexadecimal."""
    return hashlib.sha256(f"{_FORMAT} {_CanonicalWriter().plan(root)}".encode()).hexdigest()


def template(root: p.Plan) -> str:
    """SHA-256 of the plan without the constants of its conditions, in hexadecimal."""
    text = f"{_TEMPLATE} {_CanonicalWriter(slots=True).plan(root)}"
    return hashlib.sha256(text.encode()).hexdigest()


def is_same(left: e.Expr | None, right: e.Expr | None) -> bool:
    """Whether two expressions over the same columns are equal, constants to the last bit."""
    return expr_text(left) == expr_text(right)


def expr_text(expr: e.Expr | None) -> str:
    """One expression as canonical text, columns by id."""
    return "none" if expr is None else _CanonicalWriter().expr(expr)


class _CanonicalWriter:
    """Writes a plan as canonical text, numbering columns as they appear. With `slots`, constants in
    conditions of Select and Join are omitted."""

    def __init__(self, *, slots: bool = False) -> None:
        self._numbers: dict[AttributeId, int] = {}
        self._fixpoints: dict[FixpointId, int] = {}
        self._slots = slots

    def plan(self, plan: p.Plan) -> str:
        # Inputs first, so that the columns that a node reads have numbers.
        inputs = [self.plan(child) for child in plan.inputs]
        own = self._own(plan)
        for column in plan.added:
            self._numbers.setdefault(column.id, len(self._numbers))
        return _form(type(plan).__name__, *own, *inputs)

    def _own(self, plan: p.Plan) -> list[str]:
        match plan:
            case p.Scan():
                columns = [f"{item.name.lower()}:{item.type}" for item in plan.attributes]
                return [plan.table.lower(), *columns]
            case p.Select():
                return [self.expr(plan.predicate, slots=self._slots)]
            case p.Project():
                return [self.expr(output.expr) for output in plan.outputs]
            case p.Join():
                condition = self._optional(plan.condition, slots=self._slots)
                return [plan.kind.value, str(plan.null_aware), condition]
            case p.Aggregate():
                return self._aggregate(plan)
            case p.Distinct() | p.OneRow():
                return []
            case p.SetOperation():
                types = (str(item.type) for item in plan.attributes)
                return [plan.kind.value, str(plan.all), *types]
            case p.Sort():
                return self._order(plan.order)
            case p.TopK():
                count = _SLOT if self._slots and plan.count is not None else str(plan.count)
                rank = [] if plan.rank is None else [self._window(plan.rank)]
                return [count, str(plan.offset), *rank, *self._order(plan.order)]
            case p.Witness():
                by = _form("partition", *(self.expr(part) for part in plan.partition_by))
                return [by, *(_form("order", *self._order(order)) for order in plan.orders)]
            case p.Explode():
                array = self.expr(plan.array)
                return [plan.function, str(plan.outer), str(len(plan.made)), array]
            case p.Recursive() | p.Fixpoint():
                return self._recursion(plan)
            case p.Window():
                return [self._window(call) for call in plan.calls]
            case _:
                assert_never(plan)

    def _recursion(self, plan: p.Recursive | p.Fixpoint) -> list[str]:
        identity = plan.fixpoint if isinstance(plan, p.Recursive) else plan.id
        number = self._fixpoints.setdefault(identity, len(self._fixpoints))
        kind = []
        if isinstance(plan, p.Fixpoint):
            kind = [str(plan.is_set)]
            kind += [] if plan.levels is None else [f"{plan.levels} levels"]
            kind += [] if plan.best is None else [str(plan.best)]
            kind += ["one derivation"] if plan.chooses else []
            kind += ["of the answer"] if plan.answers else []
        return [str(number), *kind, *(str(item.type) for item in plan.attributes)]

    def _aggregate(self, plan: p.Aggregate) -> list[str]:
        keys = [self.expr(output.expr) for output in plan.keys]
        calls = [self._call(output.call) for output in plan.aggregates]
        return [_form("keys", *keys), _form("calls", *calls), str(plan.grouping_sets)]

    def _call(self, call: p.AggregateCall) -> str:
        arguments = [self.expr(argument) for argument in call.arguments]
        return _form(call.function, str(call.distinct), self._optional(call.condition), *arguments)

    def _window(self, call: p.WindowCall) -> str:
        return _form(
            call.function,
            _form("arguments", *(self.expr(part) for part in call.arguments)),
            _form("partition", *(self.expr(part) for part in call.partition_by)),
            _form("order", *self._order(call.order)),
            str(call.frame).lower(),
        )

    def _order(self, order: tuple[p.SortKey, ...]) -> list[str]:
        return [
            _form("key", self.expr(key.expr), str(key.descending), str(key.nulls_first))
            for key in order
        ]

    def _optional(self, expr: e.Expr | None, *, slots: bool = False) -> str:
        return "none" if expr is None else self.expr(expr, slots=slots)

    def expr(self, expr: e.Expr, *, slots: bool = False) -> str:
        """One expression with columns by number; with `slots`, without constants."""
        details: tuple[str, ...] = ()
        match expr:
            case e.Literal() if slots:
                return _SLOT
            case e.InList() if slots and all(isinstance(part, e.Literal) for part in expr.options):
                # A list of any length is one slot.
                return _form("InList", self.expr(expr.operand, slots=True), _SLOT)
            case e.ColumnRef():
                return f"${self._numbers.get(expr.id, expr.id)}"
            case e.Literal():
                return _form("Literal", str(expr.type), repr(expr.value))
            case e.Arithmetic() | e.Compare():
                details = (expr.op.value,)
            case e.Like():
                details = (repr(expr.pattern), repr(expr.escape))
            case e.Cast() | e.Mean():
                details = (str(expr.type),)
            case e.Call():
                details = (expr.name,)
        parts = [self.expr(part, slots=slots) for part in expr.expressions]
        if slots and isinstance(expr, e.And | e.Or):
            # The order of parts does not matter for implication.
            parts.sort()
        return _form(type(expr).__name__, *details, *parts)


def _form(name: str, *parts: str) -> str:
    """An unambiguous bracketed form with the length of every part."""
    return f"({name} {' '.join(f'{len(part)}:{part}' for part in parts)})"

"""Plans and expressions as text for people; never parsed or run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import assert_never

from impctl.data.schema import DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ
from impctl.errors import count_text
from impctl.expr import nodes as e
from impctl.plan import nodes as p
from impctl.types import AttributeId

Names = Mapping[AttributeId, str]


def shortened(text: str, longest: int) -> str:
    """The text, cut to `longest` characters with dots at the end."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


_OR, _AND, _NOT, _COMPARE, _ADD, _MULTIPLY, _UNARY, _ATOM = range(8)
_IDENTITY = re.compile(r"(?:split\.)?(?:.*?#\d+|[a-z]\d+)\.(.*)", re.DOTALL)
_SUMS = (e.ArithmeticOp.ADD, e.ArithmeticOp.SUBTRACT)


def expr_text(expr: e.Expr, names: Names | None = None) -> str:
    """The expression in SQL-like text; `names` overrides column names."""
    return _ExprWriter(names).text(expr)


def column_name(identity: AttributeId) -> str:
    """Column name in an id, such as `price` in `sales#1.price`."""
    match = _IDENTITY.fullmatch(identity)
    return identity if match is None else match.group(1)


def call_text(call: p.AggregateCall, names: Names | None = None) -> str:
    inside = ", ".join(expr_text(argument, names) for argument in call.arguments) or "*"
    text = f"{call.function}({'DISTINCT ' if call.distinct else ''}{inside})"
    if call.condition is None:
        return text
    return f"{text} FILTER (WHERE {expr_text(call.condition, names)})"


def order_text(order: tuple[p.SortKey, ...], names: Names | None = None) -> str:
    """Sort keys in SQL-like text; the position of NULLs only if it is not the default."""
    texts = []
    for key in order:
        text = expr_text(key.expr, names) + (" DESC" if key.descending else "")
        if key.nulls_first == key.descending:
            text += " NULLS FIRST" if key.nulls_first else " NULLS LAST"
        texts.append(text)
    return ", ".join(texts)


class _ExprWriter:
    def __init__(self, names: Names | None) -> None:
        self._names = names or {}

    def text(self, expr: e.Expr) -> str:
        return self._text_and_precedence(expr)[0]

    def _inside(self, expr: e.Expr, level: int) -> str:
        """An operand, in parentheses if it binds less tightly than `level`."""
        text, precedence = self._text_and_precedence(expr)
        return text if precedence >= level else f"({text})"

    def _listed(self, parts: tuple[e.Expr, ...]) -> str:
        return ", ".join(map(self.text, parts))

    def _text_and_precedence(self, expr: e.Expr) -> tuple[str, int]:
        match expr:
            case e.Literal():
                return _literal(expr), _ATOM
            case e.ColumnRef():
                return self._names.get(expr.id) or column_name(expr.id), _ATOM
            case e.Arithmetic():
                level = _ADD if expr.op in _SUMS else _MULTIPLY
                left, right = self._inside(expr.left, level), self._inside(expr.right, level + 1)
                return f"{left} {expr.op.value} {right}", level
            case e.Negate():
                return f"-{self._inside(expr.operand, _ATOM)}", _UNARY
            case e.Compare():
                left, right = self._inside(expr.left, _ADD), self._inside(expr.right, _ADD)
                return f"{left} {expr.op.value} {right}", _COMPARE
            case e.And():
                return " AND ".join(self._inside(part, _AND + 1) for part in expr.operands), _AND
            case e.Or():
                return " OR ".join(self._inside(part, _OR + 1) for part in expr.operands), _OR
            case e.Not() | e.IsNull() | e.InList() | e.Like():
                return self._predicate(expr)
            case _:
                return self._call(expr), _ATOM

    def _predicate(self, expr: e.Not | e.IsNull | e.InList | e.Like) -> tuple[str, int]:
        match expr:
            case e.Not(operand=e.IsNull(operand=operand)):
                return f"{self._inside(operand, _ADD)} IS NOT NULL", _COMPARE
            case e.Not(operand=e.InList(operand=operand, options=options)):
                return f"{self._inside(operand, _ADD)} NOT IN ({self._listed(options)})", _COMPARE
            case e.Not():
                return f"NOT {self._inside(expr.operand, _NOT)}", _NOT
            case e.IsNull():
                return f"{self._inside(expr.operand, _ADD)} IS NULL", _COMPARE
            case e.InList(operand=operand, options=options):
                return f"{self._inside(operand, _ADD)} IN ({self._listed(options)})", _COMPARE
            case e.Like():
                pattern = expr.pattern.replace("'", "\\'")
                return f"{self._inside(expr.operand, _ADD)} LIKE '{pattern}'", _COMPARE
            case _:
                assert_never(expr)

    def _call(self, expr: e.Case | e.Coalesce | e.Cast | e.Mean | e.Call) -> str:
        match expr:
            case e.Case():
                branches = " ".join(
                    f"WHEN {self.text(condition)} THEN {self.text(result)}"
                    for condition, result in expr.branches
                )
                return f"CASE {branches} ELSE {self.text(expr.default)} END"
            case e.Coalesce():
                return f"coalesce({self._listed(expr.operands)})"
            case e.Cast():
                return f"CAST({self.text(expr.operand)} AS {expr.type})"
            case e.Mean():
                return f"mean({self.text(expr.total)}, {self.text(expr.count)})"
            case e.Call():
                return f"{expr.name}({self._listed(expr.arguments)})"
            case _:
                assert_never(expr)


def _literal(literal: e.Literal) -> str:
    value = literal.value
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if literal.type == DATE:
        return f"DATE '{date(1970, 1, 1) + timedelta(days=int(str(value)))}'"
    if literal.type in (TIMESTAMP, TIMESTAMP_NTZ) and isinstance(value, int):
        try:
            instant = str(datetime(1970, 1, 1) + timedelta(microseconds=value))
        except OverflowError:
            instant = f"{value} microseconds"
        zone = "Z" if literal.type == TIMESTAMP else ""
        return f"{literal.type.kind.name} '{instant}{zone}'"
    if literal.type == STRING or isinstance(value, str):
        return "'" + str(value).replace("'", "\\'") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return str(value)


def describe(root: p.Plan) -> Iterator[tuple[int, p.Plan, str, str]]:
    """Each operator in the order of `walk()`: its depth, the node, its name and its details."""
    names = {attribute.id: attribute.name for node in root.walk() for attribute in node.attributes}
    pending = [(0, root)]
    while pending:
        depth, node = pending.pop()
        yield depth, node, *_words(node, names)
        pending += [(depth + 1, child) for child in reversed(node.inputs)]


def _words(plan: p.Plan, names: Names) -> tuple[str, str]:
    match plan:
        case p.Scan() | p.OneRow() | p.Recursive() | p.Fixpoint():
            return _relation(plan)
        case p.Select():
            return "select", expr_text(plan.predicate, _distinct_names(plan.predicate, names))
        case p.Project():
            return "project", ", ".join(_output(output, names) for output in plan.outputs)
        case p.Join():
            return "join", _join(plan, names)
        case p.Aggregate():
            return "aggregate", _aggregate(plan, names)
        case p.Distinct():
            return "distinct", ""
        case p.SetOperation():
            return plan.kind.value, "all" if plan.all else ""
        case p.Sort():
            return "sort", f"by {order_text(plan.order, names)}"
        case p.TopK():
            return "top-k", _top_k(plan, names)
        case p.Witness():
            by = ", ".join(expr_text(part, names) for part in plan.partition_by)
            orders = " or ".join(order_text(order, names) for order in plan.orders)
            return "witness", f"first by {orders}" + (f" per {by}" if by else "")
        case p.Explode():
            columns = ", ".join(attribute.name for attribute in plan.made)
            call = f"{plan.function}({expr_text(plan.array, names)}) AS {columns}"
            return "lateral view", f"outer {call}" if plan.outer else call
        case p.Window():
            return "window", ", ".join(_window(call, names) for call in plan.calls)
        case _:
            assert_never(plan)


def _relation(plan: p.Scan | p.OneRow | p.Recursive | p.Fixpoint) -> tuple[str, str]:
    columns = ", ".join(attribute.name for attribute in plan.attributes) or "no columns"
    if isinstance(plan, p.Scan):
        return "scan", f"{plan.table} as {plan.access}: {columns}"
    if isinstance(plan, p.OneRow):
        return "one row", "of no table"
    if isinstance(plan, p.Recursive):
        return "recursive", f"{plan.fixpoint}: {columns}"
    rows = "all" if not plan.is_set else "each row once" if plan.best is None else _best(plan)
    most = "" if plan.levels is None else f", at most {count_text(plan.levels, 'level')}"
    return "fixpoint", f"{plan.id}, {rows}{most}: {columns}"


def _best(plan: p.Fixpoint) -> str:
    """For example `least c by x, y`."""
    assert plan.best is not None
    names = [attribute.name for attribute in plan.attributes]
    values = [
        f"{'greatest' if value.greatest else 'least'} {names[value.place]}"
        for value in plan.best.values
    ]
    by = ", ".join(names[position] for position in plan.best.keys)
    return " or ".join(values) + (f" by {by}" if by else "")


def _output(output: p.ComputedColumn, names: Names) -> str:
    text = expr_text(output.expr, names)
    return text if text == output.attribute.name else f"{text} AS {output.attribute.name}"


def _distinct_names(expr: e.Expr, names: Names) -> Names:
    """Names of an expression's columns; ids for columns that share a name."""
    read = expr.columns
    shared = Counter(names[identity].lower() for identity in read)
    return {
        identity: identity if shared[names[identity].lower()] > 1 else names[identity]
        for identity in read
    }


def _join(plan: p.Join, names: Names) -> str:
    kind = "null-aware anti" if plan.null_aware else plan.kind.value
    if plan.condition is None:
        return "cross" if plan.kind is p.JoinKind.INNER else kind
    return f"{kind} on {expr_text(plan.condition, _distinct_names(plan.condition, names))}"


def _aggregate(plan: p.Aggregate, names: Names) -> str:
    texts = [(call_text(output.call, names), output.attribute.name) for output in plan.aggregates]
    calls = [text if text == name else f"{text} AS {name}" for text, name in texts]
    keys = ", ".join(_output(output, names) for output in plan.keys)
    by = f"by {keys}" if keys else "all rows"
    if plan.grouping_sets is not None:
        named = [output.attribute.name for output in plan.keys]
        sets = ", ".join(
            "(" + ", ".join(named[position] for position in chosen) + ")"
            for chosen in plan.grouping_sets
        )
        by = f"by {keys} in sets {sets}"
    return f"{by}: {', '.join(calls)}" if calls else by


def _top_k(plan: p.TopK, names: Names) -> str:
    if plan.rank is not None:
        return f"{_window(plan.rank, names)} at most {plan.count}"
    rows = "all" if plan.count is None else str(plan.count)
    by = f" by {order_text(plan.order, names)}" if plan.order else ""
    return f"{rows}{by}" + (f", skipping {plan.offset}" if plan.offset else "")


def _window(call: p.WindowCall, names: Names) -> str:
    inside = ", ".join(expr_text(argument, names) for argument in call.arguments)
    over = []
    if call.partition_by:
        keys = ", ".join(expr_text(part, names) for part in call.partition_by)
        over.append(f"partition by {keys}")
    if call.order:
        over.append("order by " + order_text(call.order, names))
    if call.frame is not None:
        over.append(call.frame.lower())
    return f"{call.function}({inside}) over ({' '.join(over)}) AS {call.attribute.name}"

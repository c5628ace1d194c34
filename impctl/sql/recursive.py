"""WITH clauses, including entries that read themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace
from sqlglot import exp
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]  # re-exported silently

from impctl.data.schema import Kind
from impctl.errors import QueryError, count_text
from impctl.plan import nodes as p
from impctl.plan.recursion import approximate_columns, leaves_in
from impctl.sql.relations import check_alias, is_entry, name_span, part, refuse_parts
from impctl.sql.scope import CommonTable, ParseContext
from impctl.sql.select import refuse_misread
from impctl.sql.subqueries import is_membership, unwrapped
from impctl.sql.text import Node, SqlText, as_invalid_query
from impctl.types import AttributeId, FixpointId

if TYPE_CHECKING:
    from impctl.expr.nodes import Span


# The text between the brackets of a WITH entry; another query of the same rows may replace it.


def body_of(entry: exp.CTE, text: SqlText) -> Span | None:
    """Text inside the brackets of an entry; None where it is lost."""
    alias = entry.args["alias"]
    # A list of columns may come first.
    ends = [name.meta.get("end") for name in (alias.this, *alias.columns)]
    if any(end is None for end in ends):
        return None
    behind = max(ends)
    depth, start = 0, 0
    for word in text.tokens:
        if word.start <= behind:
            continue
        if word.token_type is TokenType.L_PAREN:
            start = start if depth else word.end + 1
            depth += 1
        elif word.token_type is TokenType.R_PAREN and depth:
            depth -= 1
            if not depth:
                return text.span(start, word.start)
    return None


# Recursion that Spark 4.3 always refuses, whatever the tables hold, by the text alone: it runs
# UNION ALL only, and no clause after it. Everything else is left to Spark.

_FOREIGN = ("search", "cycle")
"""Clauses on WITH that Spark's grammar lacks."""


def is_refused_by_spark(tree: Node) -> bool:
    """Whether any WITH clause of the query, used or not, has what Spark does not run."""
    return any(_is_refused(clause) for clause in tree.find_all(exp.With))


def _is_refused(clause: exp.With) -> bool:
    entries: list[exp.CTE] = clause.expressions
    if any(clause.args.get(name) for name in _FOREIGN):
        return True
    if any(entry.args.get("key_expressions") for entry in entries):
        return True
    return bool(clause.args.get("recursive")) and any(
        reads_name(entry.this, entry.alias.lower()) and not _is_union_all(entry.this)
        for entry in entries
    )


def _is_union_all(query: Node) -> bool:
    """The last UNION decides for several parts: those before it may remove duplicates."""
    result = unwrapped(query)
    return isinstance(result, exp.Union) and not result.args.get("distinct")


def reads_name(node: Node, name: str) -> bool:
    """Whether the query reads a relation of that name that no WITH inside defines."""
    return any(
        [piece.name.lower() for piece in table.parts] == [name] and not is_entry(table, node)
        for table in node.find_all(exp.Table)
    )


# What may occur between a step and the rows it reads of its own fixpoint. A step must give more
# rows when it reads more: selections, computed columns, joins that preserve the entry's rows,
# UNIONs. In a set, DISTINCT over these rows is dropped, and IN or EXISTS over them becomes an inner
# join. In a bag both would change multiplicities, and each row must come from one row of the entry,
# since a round sees only the last one's rows. Anything else is refused with its place. Parts that
# do not read the entry may be any query.

_ONLY_ONCE = (
    "use UNION if each row is needed once, or use a join: with UNION ALL it would count how often "
    "a row is derived"
)
_ONE_ROW = (
    "use UNION, which joins all rows so far; UNION ALL joins only the rows of the last round, so "
    "the result depends on the number of rounds"
)


class _Step(Struct, frozen=True):
    """Checks the step of a WITH entry; `is_set` with UNION, not UNION ALL."""

    fixpoint: FixpointId
    name: str
    is_set: bool
    references: Mapping[AttributeId, Node]
    """Text nodes of the leaves, by the id of a leaf's first column."""
    text: SqlText

    def refuse_without(self, plan: p.Plan, span: Span | None) -> None:
        """With UNION ALL, rows derived from no row of the entry would be added in every round."""
        if self.is_set or leaves_in(plan, self.fixpoint):
            return
        raise self.text.unsupported(
            f"rows derived without `{self.name}` in its own step of UNION ALL",
            plan.span if plan.span is not None else span,
            hint="move them to the first part: here every round derives them again",
        )

    def of(self, plan: p.Plan) -> p.Plan:
        """The node over its inputs, after checking all that read the entry; else QueryError."""
        if not leaves_in(plan, self.fixpoint):
            return plan
        match plan:
            case p.Recursive():
                return plan
            case p.Distinct() if self.is_set:
                return self.of(plan.child)
            case p.Join():
                return self._join(plan)
            case p.SetOperation(kind=p.SetKind.UNION) if self.is_set or plan.all:
                for side in (plan.left, plan.right):
                    self.refuse_without(side, plan.span)
                left, right = self.of(plan.left), self.of(plan.right)
                return replace(plan, all=True, left=left, right=right)
            case p.Select() | p.Project():
                return replace(plan, child=self.of(plan.child))
            case p.Distinct() | p.SetOperation(kind=p.SetKind.UNION):
                raise self._refusal(plan, _construct(plan), _ONLY_ONCE)
            case _:
                raise self._refusal(plan, _construct(plan))

    def _join(self, join: p.Join) -> p.Plan:
        sides = [bool(leaves_in(side, self.fixpoint)) for side in (join.left, join.right)]
        padded = {
            p.JoinKind.LEFT: (False, True),
            p.JoinKind.RIGHT: (True, False),
            p.JoinKind.FULL: (True, True),
        }.get(join.kind, (False, False))
        if any(recurs and optional for recurs, optional in zip(sides, padded, strict=True)):
            raise self._refusal(join, f"the optional side of a {join.kind.value} join")
        if join.kind is p.JoinKind.ANTI and sides[1]:
            raise self._refusal(join, "NOT IN, NOT EXISTS or an anti join")
        if not self.is_set and join.kind is p.JoinKind.SEMI and sides[1]:
            raise self._refusal(join, "IN, EXISTS or a semi join", _ONLY_ONCE)
        if not self.is_set and all(sides):
            raise self._refusal(join, "a join of two of its rows", _ONE_ROW)
        left, right = self.of(join.left), self.of(join.right)
        if join.kind is not p.JoinKind.SEMI or not sides[1]:
            return replace(join, left=left, right=right)
        # A row comes once for each partner, which makes no difference in a set.
        kept = p.ComputedColumn.unchanged(join.left.attributes)
        both = replace(join, kind=p.JoinKind.INNER, left=left, right=right)
        return p.Project(both, kept, span=join.span)

    def _refusal(self, node: p.Plan, construct: str, hint: str = "") -> QueryError:
        leaf = leaves_in(node, self.fixpoint)[0]
        reference = self.references[leaf.attributes[0].id]
        construct = _around(reference, node) or construct
        return self.text.unsupported(
            f"{construct} over recursive `{self.name}` in its own step",
            node.span if node.span is not None else leaf.span,
            hint=hint
            or "a step can only filter, join and compute; move this to a query that reads "
            f"`{self.name}`",
        )


def _around(reference: Node, node: p.Plan) -> str | None:
    """What encloses the name in the text where the plan has other operators."""
    if not isinstance(node, p.Join | p.Aggregate):
        return None
    inner: Any = reference
    outer: Any = reference.parent
    while outer is not None and not isinstance(outer, exp.CTE):
        if is_membership(outer) and isinstance(node, p.Join) and node.kind is p.JoinKind.LEFT:
            return "IN or EXISTS under OR"
        is_relation = isinstance(outer, exp.From | exp.Join | exp.SetOperation | exp.Subquery)
        if isinstance(inner, exp.Subquery) and not is_relation and not is_membership(outer):
            return "a subquery used as a value"
        inner, outer = outer, outer.parent
    return None


def _construct(node: p.Plan) -> str:
    match node:
        case p.Aggregate(aggregates=()):
            return "GROUP BY"
        case p.Aggregate():
            return "an aggregate function"
        case p.Window():
            return "a window function"
        case p.Sort():
            return "ORDER BY"
        case p.TopK(rank=None):
            return "LIMIT"
        case p.TopK():
            return "DISTINCT ON"
        case p.SetOperation():
            return node.kind.value.upper()
        case p.Distinct():
            return "DISTINCT"
        case p.Explode():
            return "LATERAL VIEW"
        case p.Fixpoint():
            return "another recursion"
    return type(node).__name__.upper()


# WITH clauses: visible entries, and self-referencing ones as fixpoints. `WITH RECURSIVE r(columns)
# AS (base UNION step)` is the least set with T = base UNION step; with UNION ALL, a row counts as
# often as it is derived. Other forms are refused. Under RECURSIVE an entry's name inside the entry
# means the entry, even if a table has that name. Every reference to an entry has its own fixpoint,
# with its own accesses and columns and the entry's one id.

_UNION_PARTS = frozenset({"this", "expression", "distinct", "with"})
_TAIL = ("order", "limit", "offset")
MOST_LEVELS = 2**31 - 1
"""Largest INT; Spark reads MAX RECURSION LEVEL as INT."""


def with_common_tables(node: Node, context: ParseContext) -> ParseContext:
    """The context of a query, with its WITH entries visible."""
    clause = part(node, "with")
    if clause is None:
        return context
    _refuse_clauses(clause, context)
    entries: list[exp.CTE] = clause.expressions
    for index, entry in enumerate(entries):
        visible = dict(context.common_tables)
        if clause.args.get("recursive"):
            result = _recursive_table(entry, entries[index + 1 :], context)
        else:
            result = CommonTable(entry, context)
        visible[entry.alias.lower()] = result
        context = replace(context, common_tables=visible)
    return context


def read_unused(node: Node, context: ParseContext) -> None:
    """Read entries that no plan contains: Spark runs the text that has them."""
    clause = part(node, "with")
    for entry in () if clause is None else clause.expressions:
        if id(entry) not in context.read_entries:
            plan = context.common_tables[entry.alias.lower()].plan(entry)
            context.unused.append(plan)


def _refuse_clauses(clause: Node, context: ParseContext) -> None:
    text = context.text
    for name in ("search", "cycle"):
        result = clause.args.get(name)
        if result:
            kind = "CYCLE" if str(result.args.get("kind") or name).upper() == "CYCLE" else "SEARCH"
            raise text.unsupported(
                f"{kind} on a recursive WITH entry",
                result,
                hint="remove it: UNION stops at cycles, and a column can hold the path or depth",
            )
    for entry in clause.expressions:
        levels = text.levels.get(id(entry))
        if levels is not None and not clause.args.get("recursive"):
            raise text.error(
                f"MAX RECURSION LEVEL is in WITH entry `{entry.alias}`, which is not a WITH "
                "RECURSIVE",
                text.span(levels.start, levels.end),
                hint="remove it, or write WITH RECURSIVE",
                code="query_syntax",
            )
        keys = entry.args.get("key_expressions")
        if keys:
            raise text.unsupported(
                "USING KEY on a WITH entry",
                keys[0],
                hint="remove it, and select the best row per key in the query that reads the entry",
            )


def _recursive_table(
    entry: exp.CTE, later: Iterable[exp.CTE], context: ParseContext
) -> CommonTable:
    name = entry.alias.lower()
    known = context.common_tables
    visible = dict(known)
    for other in later:
        called = other.alias
        is_known = called.lower() in known or context.names.find([called]) is not None
        if called.lower() != name and not is_known:
            visible[called.lower()] = _not_yet(other, context)
    inside = replace(context, common_tables=visible)
    if not reads_name(entry.this, name):
        return CommonTable(entry, inside)
    return CommonTable(entry, inside, _Entry(entry, inside).read)


def _not_yet(entry: exp.CTE, context: ParseContext) -> CommonTable:
    def refuse(reference: Node) -> p.Plan:
        # Spark does not know such a name.
        raise as_invalid_query(
            context.text.unsupported(
                f"`{entry.alias}` before its own WITH entry (mutual recursion)",
                reference,
                hint="derive the rows of both in one entry, with a column that distinguishes them",
            )
        )

    return CommonTable(entry, context, refuse)


class _Entry(Struct, frozen=True):
    """A WITH entry that reads itself, and what is visible there."""

    node: exp.CTE
    context: ParseContext

    @property
    def name(self) -> str:
        return self.node.alias

    def read(self, reference: Node) -> p.Plan:
        context, text = self.context, self.context.text
        union = self._union()
        base = self._part(union, union.this, CommonTable(self.node, context, self._in_base))
        columns = self._columns(base)
        identity = context.fixpoint_of(self.node)
        references: dict[AttributeId, Node] = {}

        def leaf(node: Node) -> p.Plan:
            created = self._attributes("r", columns)
            span = name_span(node, context) if isinstance(node, exp.Table) else text.span_of(node)
            references[created[0].id] = node
            return p.Recursive(identity, created, span=span)

        step = self._part(union, union.expression, CommonTable(self.node, context, leaf))
        self._refuse_types(base, step, union)
        is_set = bool(union.args.get("distinct"))
        levels = self._levels(is_set=is_set)
        checked = _Step(identity, self.name, is_set, references, text)
        checked.refuse_without(step, text.span_of(union.expression))
        as_read = checked.of(step)
        self._refuse_approximate(base, as_read, union)
        created, span = self._attributes("f", columns), body_of(self.node, text)
        return p.Fixpoint(identity, base, as_read, created, is_set, levels, span=span)

    def _levels(self, *, is_set: bool) -> int | None:
        text = self.context.text
        result = text.levels.get(id(self.node))
        if result is not None and is_set:
            raise text.unsupported(
                "MAX RECURSION LEVEL on a recursion of UNION",
                text.span(result.start, result.end),
                hint="remove it: UNION stops at cycles, and a column can hold the level",
            )
        if result is not None and result.most > MOST_LEVELS:
            raise text.error(
                f"MAX RECURSION LEVEL is more than {MOST_LEVELS:,}, the largest value that Spark "
                "accepts",
                text.span(result.start, result.end),
                hint="write a smaller number",
            )
        return None if result is None else result.most

    def _part(self, union: exp.Union, query: Node, entry: CommonTable) -> p.Plan:
        """Base or step, with the entry's name bound to `entry`."""
        visible = {**self.context.common_tables, self.name.lower(): entry}
        inside = with_common_tables(union, replace(self.context, common_tables=visible))
        context = inside
        volatile = len(context.volatile)
        plan = inside.plan_of(query)
        for construct, span in context.volatile[volatile:]:
            raise context.text.unsupported(
                f"`{construct}` in recursive `{self.name}`, which has no fixed result",
                span,
                hint="pass the value as a parameter",
            )
        if query is union.expression:
            read_unused(union, inside)
        return plan

    def _union(self) -> exp.Union:
        text = self.context.text
        union = unwrapped(self.node.this)
        if not isinstance(union, exp.Union):
            kind = (
                f"{union.key.upper()} between the parts"
                if isinstance(union, exp.SetOperation)
                else "one part only"
            )
            raise text.unsupported(
                f"recursive `{self.name}` with {kind}",
                union,
                hint=f"write it as a part without `{self.name}`, UNION, and one that reads it",
            )
        for name in _TAIL:
            if union.args.get(name):
                raise text.unsupported(
                    f"{name.upper()}{' BY' if name == 'order' else ''} on the UNION of recursive "
                    f"`{self.name}`",
                    union.args[name],
                    hint=f"move it to a query that reads `{self.name}`",
                )
        refuse_parts(union, _UNION_PARTS, self.context, f"recursive `{self.name}`")
        refuse_misread(union, self.context)
        return union

    def _in_base(self, reference: Node) -> p.Plan:
        hint = (
            "put all parts that read it after the first UNION, in parentheses if there are several"
        )
        construct = f"`{self.name}` in the first part of its UNION"
        raise self.context.text.unsupported(construct, reference, hint=hint)

    def _columns(self, base: p.Plan) -> tuple[p.Attribute, ...]:
        """Name and type of the entry's columns; ids are the base's."""
        text = self.context.text
        attributes = base.attributes
        names = self.node.alias_column_names or [attribute.name for attribute in attributes]
        check_alias(self.node, len(attributes), self.context)
        for name, attribute in zip(names, attributes, strict=True):
            if attribute.type is None or attribute.type.kind is Kind.OTHER:
                raise text.unsupported(
                    f"column `{name}` of recursive `{self.name}`, whose type has values it cannot "
                    "compare",
                    self.node,
                    hint="CAST it in both parts of the UNION",
                )
        return tuple(replace(a, name=n) for n, a in zip(names, attributes, strict=True))

    def _attributes(self, letter: str, columns: tuple[p.Attribute, ...]) -> tuple[p.Attribute, ...]:
        """The columns under new ids; a step may make any of them NULL."""
        ids = self.context.fresh(letter, [column.name for column in columns])
        return tuple(
            replace(column, id=identity, nullable=True)
            for identity, column in zip(ids, columns, strict=True)
        )

    def _refuse_types(self, base: p.Plan, step: p.Plan, union: exp.Union) -> None:
        text = self.context.text
        first, second = self._columns(base), step.attributes
        if len(first) != len(second):
            raise text.error(
                f"Recursive `{self.name}` has {count_text(len(first), 'column')} in its first part,"
                f" but {len(second)} in its second",
                union.expression,
                hint="select the same number of columns in both",
            )
        for column, attribute in zip(first, second, strict=True):
            if column.type != attribute.type:
                types = f"`{column.type}` and `{attribute.type or 'unknown'}`"
                name = f"`{column.name}`"
                raise text.unsupported(
                    f"recursive `{self.name}` with {types} in column {name}",
                    union.expression,
                    hint=f"CAST one of them, so that {name} has the same type in both parts",
                )

    def _refuse_approximate(self, base: p.Plan, step: p.Plan, union: exp.Union) -> None:
        for plan, query in ((base, union.this), (step, union.expression)):
            loose = approximate_columns(plan)
            for column, attribute in zip(self._columns(base), plan.attributes, strict=True):
                if attribute.id in loose:
                    raise self.context.text.unsupported(
                        f"a sum of doubles in column `{column.name}` of recursive `{self.name}`",
                        query,
                        hint="the last digits vary from run to run; sum decimals, or CAST the "
                        "values to DECIMAL",
                    )

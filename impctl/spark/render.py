"""Plans as Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct, field
from msgspec.structs import replace
from sqlglot import exp, parse_one

from impctl.data.schema import INTEGER, Kind
from impctl.errors import QueryError
from impctl.expr.nodes import ColumnRef, Expr, Mean
from impctl.plan import nodes as p
from impctl.rules.optimize import prune_columns
from impctl.rules.witnesses import first_by
from impctl.spark.expressions import DIALECT, bracketed, column, render_expr

if TYPE_CHECKING:
    from sqlglot.expressions import Expr as Sql

    from impctl.types import AccessId, AttributeId, FixpointId


# Top-k with all its ties, for capture: the rows that some run of `ORDER BY ... LIMIT`, or of a
# filter on `row_number`, may give, and those before an OFFSET. Without an order that tells rows
# apart, all rows.

_RANK = p.Attribute("impctl/rank", "rank", INTEGER, nullable=False)


def with_ties(node: p.TopK) -> p.Plan:
    """The node with every row tied at the last place; at the end there may be one more rank."""
    order = tuple(key for key in node.order if key.expr.columns)
    if node.count is None or not order:
        return node.child
    rank = p.WindowCall(_RANK, "rank", (), (), order) if node.rank is None else node.rank
    if rank.function == "row_number":
        rank = replace(rank, function="rank")
    return replace(node, order=order, count=node.offset + node.count, offset=0, rank=rank)


# Averages of decimals that `split_averages` took apart, put together again for Spark: its AVG keeps
# digits that a quotient of sum and count loses, and sums short decimals as doubles. The plan yields
# the same rows in the same columns; a plan with such a quotient left is refused.


def whole_averages(root: p.Plan) -> p.Plan:
    """The plan with AVG for every average of decimals; raises QueryError where one remains."""
    result = _whole(root)
    if result is root:
        return root
    # Sums and counts that only averages read would cost, and the pass is a baseline.
    return prune_columns(result)


def _whole(plan: p.Plan) -> p.Plan:
    plan = plan.map_inputs(_whole)
    means = dict.fromkeys(_means(plan))
    if not means:
        return plan
    if not isinstance(plan, p.Project | p.Select):
        raise _unsupported()
    child, averages = plan.child, {}
    for mean in means:
        child, averages[mean] = _averaged(child, mean)

    def swap(expr: Expr) -> Expr | None:
        return averages.get(expr) if isinstance(expr, Mean) else None

    result = replace(plan, child=child).map(lambda expr: expr.transform(swap))
    if isinstance(plan, p.Project):
        return result
    return p.Project(result, p.ComputedColumn.unchanged(plan.attributes))


def _means(plan: p.Plan) -> Iterator[Mean]:
    for expr in plan.expressions:
        for part in expr.walk():
            if isinstance(part, Mean) and part.type.kind is Kind.DECIMAL:
                yield part


def _averaged(plan: p.Plan, mean: Mean) -> tuple[p.Plan, ColumnRef]:
    total, count = mean.total, mean.count
    if not (isinstance(total, ColumnRef) and isinstance(count, ColumnRef)):
        raise _unsupported()
    match plan:
        case p.Aggregate():
            return _with_average(plan, mean, total, count)
        case p.Select():
            child, average = _averaged(plan.child, mean)
            return replace(plan, child=child), average
        case p.Project():
            exprs = {output.attribute.id: output.expr for output in plan.outputs}
            inner = replace(mean, total=exprs[total.id], count=exprs[count.id])
            child, average = _averaged(plan.child, inner)
            if average.id not in exprs:
                passed = p.ComputedColumn(p.Attribute(average.id, "average", mean.type), average)
                plan = replace(plan, child=child, outputs=(*plan.outputs, passed))
            return plan, average
        case p.Join():
            is_left = any(attribute.id == total.id for attribute in plan.left.attributes)
            if not is_left and plan.kind in (p.JoinKind.SEMI, p.JoinKind.ANTI):
                raise _unsupported()
            side, average = _averaged(plan.left if is_left else plan.right, mean)
            joined = replace(plan, left=side) if is_left else replace(plan, right=side)
            return joined, average
        case _:
            raise _unsupported()


def _with_average(
    plan: p.Aggregate, mean: Mean, total: ColumnRef, count: ColumnRef
) -> tuple[p.Plan, ColumnRef]:
    calls = {output.attribute.id: output.call for output in plan.aggregates}
    summed, counted = calls.get(total.id), calls.get(count.id)
    if summed is None or counted is None or replace(summed, function="count") != counted:
        raise _unsupported()
    column = p.Attribute(f"{total.id}/whole", "average", mean.type)
    if column.id not in calls:
        average = p.AggregateOutput(column, replace(summed, function="avg"))
        plan = replace(plan, aggregates=(*plan.aggregates, average))
    return plan, column.ref()


def _unsupported() -> QueryError:
    return QueryError(
        "An average of decimals is in a place where Spark cannot capture it",
        code="capture_unsupported",
        hint="use AVG of `CAST(... AS DOUBLE)`, or compute the average in a separate query",
    )


# Witness rows in SQL: the first rank of every order, one after another. Each branch is a rank of at
# most one, which Spark cuts before it shuffles; that is cheaper than ranking all rows by each
# order.


def spelled_out(node: p.Witness) -> p.Plan:
    """The node as a union of first ranks."""
    columns = node.attributes

    def both(left: p.Plan, right: p.Plan) -> p.Plan:
        return p.SetOperation(p.SetKind.UNION, True, left, right, columns, span=node.span)

    outputs = p.ComputedColumn.unchanged(columns)
    firsts: list[p.Plan] = [p.Project(first_by(node, order), outputs) for order in node.orders]
    return reduce(both, firsts)


# Plans as Spark SQL: the SELECT yields the plan's rows as a bag. Every column has a name (`c0`,
# `c1`, ...) unique in the whole text, independent of users' names. The SQL is built from sqlglot
# nodes only.

_JOIN_WORDS = {
    p.JoinKind.INNER: ("", "INNER"),
    p.JoinKind.LEFT: ("LEFT", "OUTER"),
    p.JoinKind.RIGHT: ("RIGHT", "OUTER"),
    p.JoinKind.FULL: ("FULL", "OUTER"),
    p.JoinKind.SEMI: ("LEFT", "SEMI"),
    p.JoinKind.ANTI: ("LEFT", "ANTI"),
}
_SET_NODES = {
    p.SetKind.UNION: exp.Union,
    p.SetKind.EXCEPT: exp.Except,
    p.SetKind.INTERSECT: exp.Intersect,
}


class Renderer(Struct, frozen=True):
    """Turns nodes into SELECTs, naming columns as they appear. `views` names the relation each
    access reads. A fixpoint that is written twice is two entries."""

    views: Mapping[AccessId, str]
    names: dict[AttributeId, str] = field(default_factory=dict)
    entries: dict[FixpointId, str] = field(default_factory=dict)
    """WITH entry names of the enclosing fixpoints."""

    def name(self, attribute: AttributeId) -> str:
        """The SQL name of a column, the same at every call."""
        return self.names.setdefault(attribute, f"c{len(self.names)}")

    def columns(self, attributes: Sequence[p.Attribute]) -> list[Sql]:
        if not attributes:
            return [exp.alias_(exp.Literal.number(1), "nothing", quoted=True)]
        return [column(self.name(attribute.id)) for attribute in attributes]

    def outputs(self, outputs: Sequence[p.ComputedColumn]) -> list[Sql]:
        if not outputs:
            return self.columns(())
        return [self.aliased(self.expr(output.expr), output.attribute) for output in outputs]

    def aliased(self, node: Sql, attribute: p.Attribute) -> Sql:
        return exp.alias_(node, self.name(attribute.id), quoted=True)

    def expr(self, expr: Expr) -> Sql:
        return render_expr(expr, self.names)

    def source(self, plan: p.Plan) -> exp.Subquery:
        return self.select(plan).subquery()

    def select(self, plan: p.Plan) -> exp.Select:
        match plan:
            case p.Scan() | p.OneRow():
                return self._relation(plan)
            case p.Select():
                child = self.source(plan.child)
                rows = exp.select(*self.columns(plan.child.attributes)).from_(child)
                return rows.where(self.expr(plan.predicate))
            case p.Project():
                child = self.source(plan.child)
                return exp.select(*self.outputs(plan.outputs)).from_(child)
            case p.Distinct():
                child = self.source(plan.child)
                return exp.select(*self.columns(plan.attributes)).from_(child).distinct()
            case p.Sort():
                # Which rows there are does not depend on it, and ordering them costs.
                return self.select(plan.child)
            case p.TopK():
                return self._top_k(plan)
            case p.Join():
                return self._join(plan)
            case p.SetOperation():
                return self._set_operation(plan)
            case p.Aggregate():
                return self._aggregate(plan)
            case p.Window():
                child = self.source(plan.child)
                computed = [self.aliased(self._over(call), call.attribute) for call in plan.calls]
                columns = self.columns(plan.child.attributes)
                return exp.select(*columns, *computed).from_(child)
            case p.Explode():
                return self._explode(plan)
            case p.Witness():
                return self.select(spelled_out(plan))
            case p.Recursive() | p.Fixpoint():
                return self._recursion(plan)
            case _:
                assert_never(plan)

    def _recursion(self, plan: p.Recursive | p.Fixpoint) -> exp.Select:
        """A WITH RECURSIVE entry and its rows; Spark supports only UNION ALL there."""
        if isinstance(plan, p.Recursive):
            return self._of_entry(self.entries[plan.fixpoint], plan.attributes)
        if plan.is_set:
            raise QueryError(
                "impctl cannot write WITH RECURSIVE with UNION for Spark, which does not support "
                "it",
                hint="do not sketch the query's tables",
                code="capture_unsupported",
            )
        # Another one each time: the same entry may be written twice, with other filters in it.
        number = self.name(f"{plan.id}/{len(self.names)}")
        entry = f"recursion_{number}"
        while entry in self.views.values():
            entry += "_"
        self.entries[plan.id] = entry
        parts = []
        for part in (plan.base, plan.step):
            source = self.source(part)
            read = enumerate(self.name(attribute.id) for attribute in part.attributes)
            columns = [exp.alias_(column(name), f"r{index}", quoted=True) for index, name in read]
            parts.append(exp.select(*columns).from_(source))
        name: Sql = exp.to_identifier(entry, quoted=True)
        if plan.levels is not None:
            # No node of sqlglot has this clause.
            name = exp.Var(this=f"{name.sql(DIALECT)} MAX RECURSION LEVEL {plan.levels}")
        both = exp.Union(this=parts[0], expression=parts[1], distinct=False)
        clause = exp.With(
            expressions=[exp.CTE(this=both, alias=exp.TableAlias(this=name))], recursive=True
        )
        rows = self._of_entry(entry, plan.attributes)
        rows.set("with_", clause)
        return rows

    def _of_entry(self, entry: str, attributes: Sequence[p.Attribute]) -> exp.Select:
        read = [
            self.aliased(column(f"r{index}"), attribute)
            for index, attribute in enumerate(attributes)
        ]
        return exp.select(*read).from_(exp.Table(this=exp.to_identifier(entry, quoted=True)))

    def _relation(self, plan: p.Scan | p.OneRow) -> exp.Select:
        if isinstance(plan, p.OneRow):
            return exp.select(*self.columns(()))
        view = exp.Table(this=exp.to_identifier(self.views[plan.access], quoted=True))
        if not plan.attributes:
            return exp.select(*self.columns(())).from_(view)
        read = [self.aliased(column(a.name), a) for a in plan.attributes]
        return exp.select(*read).from_(view)

    def _explode(self, plan: p.Explode) -> exp.Select:
        child = self.source(plan.child)
        names = [exp.to_identifier(self.name(attribute.id), quoted=True) for attribute in plan.made]
        alias = exp.TableAlias(this=exp.to_identifier("exploded"), columns=names)
        call = exp.Anonymous(this=plan.function, expressions=[self.expr(plan.array)])
        rows = exp.select(*self.columns(plan.attributes)).from_(child)
        lateral = exp.Lateral(this=call, view=True, outer=plan.outer, alias=alias)
        rows.append("laterals", lateral)
        return rows

    def _top_k(self, plan: p.TopK) -> exp.Select:
        if plan.rank is not None:
            ranked = self.source(p.Window(plan.child, (plan.rank,)))
            rows = exp.select(*self.columns(plan.attributes)).from_(ranked)
            rank = column(self.name(plan.rank.attribute.id))
            last = exp.Literal.number(0 if plan.count is None else plan.count)
            return rows.where(exp.LTE(this=rank, expression=last))
        child = self.source(plan.child)
        rows = exp.select(*self.columns(plan.attributes)).from_(child)
        if plan.order:
            rows = rows.order_by(*self.order(plan.order))
        if plan.count is not None:
            rows = rows.limit(plan.count)
        return rows.offset(plan.offset) if plan.offset else rows

    def order(self, keys: Sequence[p.SortKey]) -> list[Sql]:
        """ORDER BY terms; constants order nothing, and a bare number would mean a column."""
        return [
            exp.Ordered(this=self.expr(key.expr), desc=key.descending, nulls_first=key.nulls_first)
            for key in keys
            if key.expr.columns
        ]

    def _join(self, plan: p.Join) -> exp.Select:
        left, right = self.source(plan.left), self.source(plan.right)
        condition = exp.true() if plan.condition is None else self.expr(plan.condition)
        if plan.null_aware:
            unknown = exp.Is(this=bracketed(condition.copy()), expression=exp.null())
            condition = exp.Or(this=bracketed(condition), expression=bracketed(unknown))
        side, kind = _JOIN_WORDS[plan.kind]
        join = exp.Join(this=right, side=side, kind=kind, on=condition)
        rows = exp.select(*self.columns(plan.attributes)).from_(left)
        rows.append("joins", join)
        return rows

    def _set_operation(self, plan: p.SetOperation) -> exp.Select:
        # Each side is a SELECT of its own: else an ORDER BY ... LIMIT of the right one would apply
        # to the whole.
        left_source, right_source = self.source(plan.left), self.source(plan.right)
        pairs = zip(plan.attributes, plan.left.attributes, strict=True)
        renamed = [self.aliased(column(self.name(attribute.id)), out) for out, attribute in pairs]
        left = exp.select(*renamed).from_(left_source)
        right = exp.select(*self.columns(plan.right.attributes)).from_(right_source)
        both = _SET_NODES[plan.kind](this=left, expression=right, distinct=not plan.all)
        return exp.select(*self.columns(plan.attributes)).from_(both.subquery())

    def _aggregate(self, plan: p.Aggregate) -> exp.Select:
        """GROUP BY over plain columns: a constant there would be taken for a column's number."""
        child = self.source(plan.child)
        below = [
            *self.columns(plan.child.attributes),
            *(self.aliased(self.expr(key.expr), key.attribute) for key in plan.keys),
        ]
        rows = exp.select(*below).from_(child).subquery()
        keys = [column(self.name(key.attribute.id)) for key in plan.keys]
        refs = {key.expr: key.attribute.ref() for key in plan.keys}
        calls = []
        for output in plan.aggregates:
            call = output.call
            if call.function in ("grouping", "grouping_id"):
                # They take grouping columns, which have names of their own here.
                call = call.map(lambda argument: refs.get(argument, argument))
            calls.append(self.aliased(self.call(call), output.attribute))
        listed = [*keys, *calls] or [exp.alias_(exp.Count(this=exp.Star()), "nothing", quoted=True)]
        grouped = exp.select(*listed).from_(rows)
        if plan.grouping_sets is not None:
            sets = [
                exp.Tuple(expressions=[keys[member].copy() for member in members])
                for members in plan.grouping_sets
            ]
            group = exp.Group(grouping_sets=[exp.GroupingSets(expressions=sets)])
            grouped.set("group", group)
        elif keys:
            grouped = grouped.group_by(*(key.copy() for key in keys))
        return grouped

    def call(self, call: p.AggregateCall) -> Sql:
        """An aggregate call; COUNT without arguments is COUNT(*)."""
        arguments = [self.expr(argument) for argument in call.arguments]
        if not arguments and call.function == "count":
            arguments = [exp.Star()]
        if call.distinct:
            arguments = [exp.Distinct(expressions=arguments)]
        node = exp.Anonymous(this=call.function.upper(), expressions=arguments)
        if call.condition is None:
            return node
        return exp.Filter(this=node, expression=exp.Where(this=self.expr(call.condition)))

    def _over(self, call: p.WindowCall) -> Sql:
        arguments = [self.expr(argument) for argument in call.arguments]
        if not arguments and call.function == "count":
            arguments = [exp.Star()]
        order, spec = self.order(call.order), None
        if call.frame is not None:
            # The clause comes from the query's own text.
            over = parse_one(f"SUM(1) OVER (ORDER BY 1 {call.frame})", dialect=DIALECT)
            spec = over.args["spec"]
            assert isinstance(spec, exp.WindowSpec)
        return exp.Window(
            this=exp.Anonymous(this=call.function.upper(), expressions=arguments),
            partition_by=[self.expr(part) for part in call.partition_by],
            order=exp.Order(expressions=order) if order else None,
            spec=spec,
        )


def render_plan(plan: p.Plan, table_names: Mapping[AccessId, str]) -> str:
    """The plan in Spark SQL over views called `table_names`, with its columns in order."""
    return Renderer(table_names).select(whole_averages(plan)).sql(DIALECT)

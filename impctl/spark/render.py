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
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateOutput,
    Attribute,
    ComputedColumn,
    Distinct,
    Explode,
    Fixpoint,
    Join,
    JoinKind,
    OneRow,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetKind,
    SetOperation,
    Sort,
    SortKey,
    TopK,
    Window,
    WindowCall,
    Witness,
)
from impctl.rules.prune import prune_columns
from impctl.rules.witnesses import first_by
from impctl.spark.expressions import DIALECT, bracketed, column, render_expr

if TYPE_CHECKING:
    from sqlglot.expressions import Expr as Sql

    from impctl.types import AccessId, AttributeId, FixpointId


# Top-k with all its ties, for capture: the rows that some run of `ORDER BY ... LIMIT`, or of a
# filter on `row_number`, may give, and those before an OFFSET. Without an order that tells rows
# apart, all rows.

_RANK = Attribute("impctl/rank", "rank", INTEGER, nullable=False)


def with_ties(node: TopK) -> Plan:
    """The node with every row tied at the last place; at the end there may be one more rank."""
    order = tuple(key for key in node.order if key.expr.columns)
    if node.count is None or not order:
        return node.child
    rank = WindowCall(_RANK, "rank", (), (), order) if node.rank is None else node.rank
    if rank.function == "row_number":
        rank = replace(rank, function="rank")
    return replace(node, order=order, count=node.offset + node.count, offset=0, rank=rank)


# Averages of decimals that `split_averages` took apart, put together again for Spark: its AVG keeps
# digits that a quotient of sum and count loses, and sums short decimals as doubles. The plan yields
# the same rows in the same columns; a plan with such a quotient left is refused.


def whole_averages(root: Plan) -> Plan:
    """The plan with AVG for every average of decimals; raises QueryError where one remains."""
    result = _whole(root)
    if result is root:
        return root
    # Sums and counts that only averages read would cost, and the pass is a baseline.
    return prune_columns(result)


def _whole(plan: Plan) -> Plan:
    plan = plan.map_inputs(_whole)
    means = dict.fromkeys(_means(plan))
    if not means:
        return plan
    if not isinstance(plan, Project | Select):
        raise _unsupported()
    child, averages = plan.child, {}
    for mean in means:
        child, averages[mean] = _averaged(child, mean)

    def swap(expr: Expr) -> Expr | None:
        return averages.get(expr) if isinstance(expr, Mean) else None

    result = replace(plan, child=child).map(lambda expr: expr.transform(swap))
    if isinstance(plan, Project):
        return result
    return Project(result, ComputedColumn.unchanged(plan.attributes))


def _means(plan: Plan) -> Iterator[Mean]:
    for expr in plan.expressions:
        for part in expr.walk():
            if isinstance(part, Mean) and part.type.kind is Kind.DECIMAL:
                yield part


def _averaged(plan: Plan, mean: Mean) -> tuple[Plan, ColumnRef]:
    total, count = mean.total, mean.count
    if not (isinstance(total, ColumnRef) and isinstance(count, ColumnRef)):
        raise _unsupported()
    match plan:
        case Aggregate():
            return _with_average(plan, mean, total, count)
        case Select():
            child, average = _averaged(plan.child, mean)
            return replace(plan, child=child), average
        case Project():
            exprs = {output.attribute.id: output.expr for output in plan.outputs}
            inner = replace(mean, total=exprs[total.id], count=exprs[count.id])
            child, average = _averaged(plan.child, inner)
            if average.id not in exprs:
                passed = ComputedColumn(Attribute(average.id, "average", mean.type), average)
                plan = replace(plan, child=child, outputs=(*plan.outputs, passed))
            return plan, average
        case Join():
            is_left = any(attribute.id == total.id for attribute in plan.left.attributes)
            if not is_left and plan.kind in (JoinKind.SEMI, JoinKind.ANTI):
                raise _unsupported()
            side, average = _averaged(plan.left if is_left else plan.right, mean)
            joined = replace(plan, left=side) if is_left else replace(plan, right=side)
            return joined, average
        case _:
            raise _unsupported()


def _with_average(
    plan: Aggregate, mean: Mean, total: ColumnRef, count: ColumnRef
) -> tuple[Plan, ColumnRef]:
    calls = {output.attribute.id: output.call for output in plan.aggregates}
    summed, counted = calls.get(total.id), calls.get(count.id)
    if summed is None or counted is None or replace(summed, function="count") != counted:
        raise _unsupported()
    column = Attribute(f"{total.id}/whole", "average", mean.type)
    if column.id not in calls:
        average = AggregateOutput(column, replace(summed, function="avg"))
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


def spelled_out(node: Witness) -> Plan:
    """The node as a union of first ranks."""
    columns = node.attributes

    def both(left: Plan, right: Plan) -> Plan:
        return SetOperation(SetKind.UNION, True, left, right, columns, span=node.span)

    outputs = ComputedColumn.unchanged(columns)
    firsts: list[Plan] = [Project(first_by(node, order), outputs) for order in node.orders]
    return reduce(both, firsts)


# Plans as Spark SQL: the SELECT yields the plan's rows as a bag. Every column has a name (`c0`,
# `c1`, ...) unique in the whole text, independent of users' names. The SQL is built from sqlglot
# nodes only.

_JOIN_WORDS = {
    JoinKind.INNER: ("", "INNER"),
    JoinKind.LEFT: ("LEFT", "OUTER"),
    JoinKind.RIGHT: ("RIGHT", "OUTER"),
    JoinKind.FULL: ("FULL", "OUTER"),
    JoinKind.SEMI: ("LEFT", "SEMI"),
    JoinKind.ANTI: ("LEFT", "ANTI"),
}
_SET_NODES = {
    SetKind.UNION: exp.Union,
    SetKind.EXCEPT: exp.Except,
    SetKind.INTERSECT: exp.Intersect,
}


class Rendered(Struct, frozen=True):
    """A SELECT and the names of its columns, and of all columns below."""

    select: exp.Select
    names: Mapping[AttributeId, str]

    @property
    def sql(self) -> str:
        return self.select.sql(DIALECT)


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

    def columns(self, attributes: Sequence[Attribute]) -> list[Sql]:
        if not attributes:
            return [exp.alias_(exp.Literal.number(1), "nothing", quoted=True)]
        return [column(self.name(attribute.id)) for attribute in attributes]

    def outputs(self, outputs: Sequence[ComputedColumn]) -> list[Sql]:
        if not outputs:
            return self.columns(())
        return [self.aliased(self.expr(output.expr), output.attribute) for output in outputs]

    def aliased(self, node: Sql, attribute: Attribute) -> Sql:
        return exp.alias_(node, self.name(attribute.id), quoted=True)

    def expr(self, expr: Expr) -> Sql:
        return render_expr(expr, self.names)

    def source(self, plan: Plan) -> exp.Subquery:
        return self.select(plan).subquery()

    def select(self, plan: Plan) -> exp.Select:
        match plan:
            case Scan() | OneRow():
                return self._relation(plan)
            case Select():
                child = self.source(plan.child)
                rows = exp.select(*self.columns(plan.child.attributes)).from_(child)
                return rows.where(self.expr(plan.predicate))
            case Project():
                child = self.source(plan.child)
                return exp.select(*self.outputs(plan.outputs)).from_(child)
            case Distinct():
                child = self.source(plan.child)
                return exp.select(*self.columns(plan.attributes)).from_(child).distinct()
            case Sort():
                # Which rows there are does not depend on it, and ordering them costs.
                return self.select(plan.child)
            case TopK():
                return self._top_k(plan)
            case Join():
                return self._join(plan)
            case SetOperation():
                return self._set_operation(plan)
            case Aggregate():
                return self._aggregate(plan)
            case Window():
                child = self.source(plan.child)
                computed = [self.aliased(self._over(call), call.attribute) for call in plan.calls]
                columns = self.columns(plan.child.attributes)
                return exp.select(*columns, *computed).from_(child)
            case Explode():
                return self._explode(plan)
            case Witness():
                return self.select(spelled_out(plan))
            case Recursive() | Fixpoint():
                return self._recursion(plan)
            case _:
                assert_never(plan)

    def _recursion(self, plan: Recursive | Fixpoint) -> exp.Select:
        """A WITH RECURSIVE entry and its rows; Spark supports only UNION ALL there."""
        if isinstance(plan, Recursive):
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

    def _of_entry(self, entry: str, attributes: Sequence[Attribute]) -> exp.Select:
        read = [
            self.aliased(column(f"r{index}"), attribute)
            for index, attribute in enumerate(attributes)
        ]
        return exp.select(*read).from_(exp.Table(this=exp.to_identifier(entry, quoted=True)))

    def _relation(self, plan: Scan | OneRow) -> exp.Select:
        if isinstance(plan, OneRow):
            return exp.select(*self.columns(()))
        view = exp.Table(this=exp.to_identifier(self.views[plan.access], quoted=True))
        if not plan.attributes:
            return exp.select(*self.columns(())).from_(view)
        read = [self.aliased(column(a.name), a) for a in plan.attributes]
        return exp.select(*read).from_(view)

    def _explode(self, plan: Explode) -> exp.Select:
        child = self.source(plan.child)
        names = [exp.to_identifier(self.name(attribute.id), quoted=True) for attribute in plan.made]
        alias = exp.TableAlias(this=exp.to_identifier("exploded"), columns=names)
        call = exp.Anonymous(this=plan.function, expressions=[self.expr(plan.array)])
        rows = exp.select(*self.columns(plan.attributes)).from_(child)
        lateral = exp.Lateral(this=call, view=True, outer=plan.outer, alias=alias)
        rows.append("laterals", lateral)
        return rows

    def _top_k(self, plan: TopK) -> exp.Select:
        if plan.rank is not None:
            ranked = self.source(Window(plan.child, (plan.rank,)))
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

    def order(self, keys: Sequence[SortKey]) -> list[Sql]:
        """ORDER BY terms; constants order nothing, and a bare number would mean a column."""
        return [
            exp.Ordered(this=self.expr(key.expr), desc=key.descending, nulls_first=key.nulls_first)
            for key in keys
            if key.expr.columns
        ]

    def _join(self, plan: Join) -> exp.Select:
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

    def _set_operation(self, plan: SetOperation) -> exp.Select:
        # Each side is a SELECT of its own: else an ORDER BY ... LIMIT of the right one would apply
        # to the whole.
        left_source, right_source = self.source(plan.left), self.source(plan.right)
        pairs = zip(plan.attributes, plan.left.attributes, strict=True)
        renamed = [self.aliased(column(self.name(attribute.id)), out) for out, attribute in pairs]
        left = exp.select(*renamed).from_(left_source)
        right = exp.select(*self.columns(plan.right.attributes)).from_(right_source)
        both = _SET_NODES[plan.kind](this=left, expression=right, distinct=not plan.all)
        return exp.select(*self.columns(plan.attributes)).from_(both.subquery())

    def _aggregate(self, plan: Aggregate) -> exp.Select:
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
                arguments = tuple(refs.get(argument, argument) for argument in call.arguments)
                call = replace(call, arguments=arguments)
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

    def call(self, call: AggregateCall) -> Sql:
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

    def _over(self, call: WindowCall) -> Sql:
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


def render_plan(plan: Plan, table_names: Mapping[AccessId, str]) -> Rendered:
    """The plan in Spark SQL over views called `table_names`, with its columns in order."""
    renderer = Renderer(table_names)
    select = renderer.select(whole_averages(plan))
    return Rendered(select, renderer.names)

"""WITH clauses: which entries are in sight, and those that read themselves as fixpoints.

Law: `WITH RECURSIVE r(columns) AS (base UNION step)` is the least set of rows with T = base UNION
step; of UNION ALL it is the rows of the base, those that a step makes of these, and so on, each as
often as it is derived. Whatever else a system makes of such a text is refused by its name. Under
RECURSIVE an entry's name means the entry inside itself, be there a table of that name or not;
entries that do not read themselves are what they are without the word. Every place that reads an
entry has a fixpoint of its own, with accesses and columns of its own and the entry's one id.
Out of scope: what a step may be (`plan.sql.recursive.step`), which rows a sketch of it must hold
(`plan.safety.recursion`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlglot import exp

from impctl.data.schema import Kind
from impctl.errors import QueryError, count_text
from impctl.plan.nodes import Attribute, Fixpoint, Plan, Recursive, attributes_of
from impctl.plan.recursion import approximate_columns
from impctl.plan.sql.recursive.body import body_of
from impctl.plan.sql.recursive.on_spark import reads_name
from impctl.plan.sql.recursive.step import Entry, Reference, as_step
from impctl.plan.sql.relation import CommonTable, Environment, name_span, part, refuse_parts
from impctl.plan.sql.sets import refuse_misread
from impctl.plan.sql.subquery import unwrapped
from impctl.plan.sql.text import read_by_none
from impctl.values import dataclass

_UNION_PARTS = frozenset({"this", "expression", "distinct", "with"})
_TAIL = ("order", "limit", "offset")
MOST_LEVELS = 2**31 - 1
"""What an INT holds, as Spark reads MAX RECURSION LEVEL."""


def with_common_tables(node: exp.Expression, environment: Environment) -> Environment:
    """The environment of a query, with the entries of its WITH clause in sight."""
    clause = part(node, "with")
    if clause is None:
        return environment
    _refuse_clauses(clause, environment)
    entries: list[exp.CTE] = clause.expressions
    for place, entry in enumerate(entries):
        visible = dict(environment.common_tables)
        if clause.args.get("recursive"):
            result = _recursive_table(entry, entries[place + 1 :], environment)
        else:
            result = CommonTable(entry, environment)
        visible[entry.alias.lower()] = result
        environment = replace(environment, common_tables=visible)
    return environment


def read_unused(node: exp.Expression, environment: Environment) -> None:
    """Read what no plan holds: Spark is handed the text with these entries in it."""
    clause = part(node, "with")
    for entry in () if clause is None else clause.expressions:
        if id(entry) not in environment.reading.read_entries:
            plan = environment.common_tables[entry.alias.lower()].plan(entry)
            environment.reading.unused.append(plan)


def _refuse_clauses(clause: exp.Expression, environment: Environment) -> None:
    text = environment.reading.text
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
    entry: exp.CTE, later: Iterable[exp.CTE], environment: Environment
) -> CommonTable:
    """An entry of WITH RECURSIVE, whether it reads itself or not."""
    name = entry.alias.lower()
    known = environment.common_tables
    visible = dict(known)
    for other in later:
        called = other.alias
        is_known = called.lower() in known or environment.reading.names.find([called]) is not None
        if called.lower() != name and not is_known:
            visible[called.lower()] = _not_yet(other, environment)
    inside = replace(environment, common_tables=visible)
    if not reads_name(entry.this, name):
        return CommonTable(entry, inside)
    return CommonTable(entry, inside, _Entry(entry, inside).read)


def _not_yet(entry: exp.CTE, environment: Environment) -> CommonTable:
    def refuse(place: exp.Expression) -> Plan:
        # To Spark such a name is none that it knows.
        raise read_by_none(
            environment.reading.text.unsupported(
                f"`{entry.alias}` before its own WITH entry (mutual recursion)",
                place,
                hint="derive the rows of both in one entry, with a column that distinguishes them",
            )
        )

    return CommonTable(entry, environment, refuse)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A WITH entry that reads itself, and what is in sight where it stands."""

    node: exp.CTE
    environment: Environment

    @property
    def name(self) -> str:
        return self.node.alias

    def read(self, place: exp.Expression) -> Plan:
        """The fixpoint, for one place that reads it."""
        environment, text = self.environment, self.environment.reading.text
        union = self._union()
        base = self._part(union, union.this, CommonTable(self.node, environment, self._in_base))
        columns = self._columns(base)
        identity = environment.reading.fixpoint_of(self.node)
        references: dict[str, Reference] = {}

        def leaf(at: exp.Expression) -> Plan:
            made = self._attributes("r", columns)
            span = name_span(at, environment) if isinstance(at, exp.Table) else text.span_of(at)
            result = Recursive(identity, made, span=span)
            references[made[0].id] = Reference(result, at)
            return result

        step = self._part(union, union.expression, CommonTable(self.node, environment, leaf))
        self._refuse_types(base, step, union)
        is_set = bool(union.args.get("distinct"))
        levels = self._levels(is_set=is_set)
        entry = Entry(identity, self.name, is_set, text.span_of(union.expression))
        as_read = as_step(step, entry, references, text)
        self._refuse_approximate(base, as_read, union)
        made, span = self._attributes("f", columns), body_of(self.node, text)
        return Fixpoint(identity, base, as_read, made, is_set, levels, span=span)

    def _levels(self, *, is_set: bool) -> int | None:
        """What MAX RECURSION LEVEL says of it."""
        text = self.environment.reading.text
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

    def _part(self, union: exp.Union, query: exp.Expression, own: CommonTable) -> Plan:
        """Base or step, with the entry's name meaning `own`."""
        visible = {**self.environment.common_tables, self.name.lower(): own}
        inside = with_common_tables(union, replace(self.environment, common_tables=visible))
        reading = inside.reading
        volatile = len(reading.volatile)
        plan = inside.read_query(query, inside)
        for construct, span in reading.volatile[volatile:]:
            raise reading.text.unsupported(
                f"`{construct}` in recursive `{self.name}`, which has no fixed result",
                span,
                hint="pass the value as a parameter",
            )
        if query is union.expression:
            read_unused(union, inside)
        return plan

    def _union(self) -> exp.Union:
        """The UNION that the entry is, if it is one of these that are read."""
        text = self.environment.reading.text
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
        refuse_parts(union, _UNION_PARTS, self.environment, f"recursive `{self.name}`")
        refuse_misread(union, self.environment)
        return union

    def _in_base(self, place: exp.Expression) -> Plan:
        raise self.environment.reading.text.unsupported(
            f"`{self.name}` in the first part of its UNION",
            place,
            hint="put all parts that read it after the first UNION, in parentheses if there are "
            "several",
        )

    def _columns(self, base: Plan) -> tuple[Attribute, ...]:
        """Name and type of the entry's columns; the identities are the base's."""
        text = self.environment.reading.text
        attributes = attributes_of(base)
        names = self.node.alias_column_names or [attribute.name for attribute in attributes]
        if len(names) != len(attributes):
            raise text.error(
                f"The alias `{self.name}` lists {count_text(len(names), 'column')}, but the "
                f"relation has {len(attributes)}",
                self.node,
                hint="name every column, or none",
            )
        for name, attribute in zip(names, attributes, strict=True):
            if attribute.type is None or attribute.type.kind is Kind.OTHER:
                raise text.unsupported(
                    f"column `{name}` of recursive `{self.name}`, whose type has values it cannot "
                    "compare",
                    self.node,
                    hint="CAST it in both parts of the UNION",
                )
        return tuple(replace(a, name=n) for n, a in zip(names, attributes, strict=True))

    def _attributes(self, letter: str, columns: tuple[Attribute, ...]) -> tuple[Attribute, ...]:
        """The columns under new identities; a step may make any of them NULL."""
        ids = self.environment.reading.fresh(letter, [column.name for column in columns])
        return tuple(
            replace(column, id=identity, nullable=True)
            for identity, column in zip(ids, columns, strict=True)
        )

    def _refuse_types(self, base: Plan, step: Plan, union: exp.Union) -> None:
        text = self.environment.reading.text
        here, there = self._columns(base), attributes_of(step)
        if len(here) != len(there):
            raise text.error(
                f"Recursive `{self.name}` has {count_text(len(here), 'column')} in its first part, "
                f"but {len(there)} in its second",
                union.expression,
                hint="select the same number of columns in both",
            )
        for one, other in zip(here, there, strict=True):
            if one.type != other.type:
                raise text.unsupported(
                    f"recursive `{self.name}` with `{one.type}` and `{other.type or 'unknown'}` in "
                    f"column `{one.name}`",
                    union.expression,
                    hint=f"CAST one of them, so that `{one.name}` has the same type in both parts",
                )

    def _refuse_approximate(self, base: Plan, step: Plan, union: exp.Union) -> None:
        for plan, query in ((base, union.this), (step, union.expression)):
            loose = approximate_columns(plan)
            for column, attribute in zip(self._columns(base), attributes_of(plan), strict=True):
                if attribute.id in loose:
                    raise self._inexact(column, query)

    def _inexact(self, column: Attribute, query: exp.Expression) -> QueryError:
        return self.environment.reading.text.unsupported(
            f"a sum of doubles in column `{column.name}` of recursive `{self.name}`",
            query,
            hint=(
                "the last digits vary from run to run; sum decimals, or CAST the values to DECIMAL"
            ),
        )

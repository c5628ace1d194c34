"""FROM clauses: tables, derived tables, common table expressions and joins.

Law: every occurrence of a table is an access of its own, with a span that is exactly its written
name; a common table expression used twice is read twice. JOIN is read as if it bound tighter than
the comma; to Spark it does not (`spark.sql.ansi.relationPrecedence`), so joins of which that
changes rows or columns are refused behind a comma.
Out of scope: PIVOT (`plan.sql.pivot`), LATERAL VIEW (`plan.sql.lateral`), WHERE
(`plan.sql.condition`), set operations (`plan.sql.sets`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace

from sqlglot import exp
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]  # re-exported silently

from impctl.errors import count_text
from impctl.expr.nodes import Span
from impctl.plan.names import is_path
from impctl.plan.nodes import Attribute, Join, JoinKind, Plan, Scan, Select, attributes_of
from impctl.plan.one_row import OneRow
from impctl.plan.sql.context import Reading
from impctl.plan.sql.expr import ExprReader
from impctl.plan.sql.inline.rows import read_values
from impctl.plan.sql.lateral import exploded
from impctl.plan.sql.pivot import pivoted
from impctl.plan.sql.recursive.meant import meant_by
from impctl.plan.sql.scope import (
    Names,
    Scope,
    ScopeEntry,
    joined_scope,
    relation_scope,
    side_by_side,
)
from impctl.plan.sql.using import equal_names, merged_scope, same_names
from impctl.values import dataclass

_KINDS = {
    ("", ""): JoinKind.INNER,
    ("", "INNER"): JoinKind.INNER,
    ("", "CROSS"): JoinKind.INNER,
    ("LEFT", ""): JoinKind.LEFT,
    ("LEFT", "OUTER"): JoinKind.LEFT,
    ("RIGHT", ""): JoinKind.RIGHT,
    ("RIGHT", "OUTER"): JoinKind.RIGHT,
    ("FULL", ""): JoinKind.FULL,
    ("FULL", "OUTER"): JoinKind.FULL,
    ("LEFT", "SEMI"): JoinKind.SEMI,
    ("", "SEMI"): JoinKind.SEMI,
    ("LEFT", "ANTI"): JoinKind.ANTI,
    ("", "ANTI"): JoinKind.ANTI,
}
_JOIN_PARTS = frozenset({"this", "side", "kind", "method", "on", "using"})
_TABLE_PARTS = frozenset({"this", "db", "catalog", "alias", "joins", "pivots"})
_SUBQUERY_PARTS = frozenset({"this", "alias", "joins", "pivots"})
_VALUES_PARTS = frozenset({"expressions", "alias"})


@dataclass(frozen=True, slots=True)
class CommonTable:
    """A WITH entry and what was visible where it stands."""

    node: exp.CTE
    environment: Environment
    read: Callable[[exp.Expression], Plan] | None = None
    """Of an entry that reads itself: its rows, for the place that names it."""

    def plan(self, place: exp.Expression) -> Plan:
        """The entry read anew, for the place that names it."""
        if self.read is not None:
            return self.read(place)
        return self.environment.read_query(self.node.this, self.environment)


@dataclass(frozen=True, slots=True)
class Environment:
    """What a query is read with: the reading, WITH entries in sight, the way to read a query."""

    reading: Reading
    read_query: Callable[[exp.Expression, Environment], Plan]
    common_tables: Mapping[str, CommonTable] = field(default_factory=dict)
    """By lower-case name."""


@dataclass(frozen=True, slots=True)
class FromSource:
    """What a FROM clause yields: a plan, and the names of its columns."""

    plan: Plan
    scope: Scope


def read_from(select: exp.Select, environment: Environment) -> FromSource:
    """The FROM clause of one SELECT block."""
    clause = part(select, "from")
    if clause is None:
        return FromSource(OneRow(), Scope(()))
    source = _joined(clause.this, select.args.get("joins") or [], environment)
    for lateral in select.args.get("laterals") or []:
        source = FromSource(*exploded(source.plan, source.scope, lateral, environment.reading))
    return source


def part(node: exp.Expression, name: str) -> exp.Expression | None:
    """An argument whose name newer sqlglot versions write with an underscore."""
    result = node.args.get(name)
    return result if result is not None else node.args.get(f"{name}_")


def refuse_parts(
    node: exp.Expression, known: frozenset[str], environment: Environment, what: str
) -> None:
    """Refuses a node that carries anything but the parts that are understood."""
    text = environment.reading.text
    for name, value in node.args.items():
        if name.rstrip("_") in known or not value:
            continue
        place = next((item for item in _nodes_in(value) if text.span_of(item) is not None), node)
        label = name.rstrip("_").upper().replace("_", " ")
        raise text.unsupported(f"{_CLAUSES.get(name.rstrip('_'), label)} in {what}", place)


_CLAUSES = {
    "sample": "TABLESAMPLE",
    "laterals": "LATERAL VIEW",
    "version": "time travel",
    "when": "time travel",
    "sort": "SORT BY",
    "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY",
    "by_name": "BY NAME",
    "locks": "FOR UPDATE",
}


def _nodes_in(value: object) -> list[exp.Expression]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, exp.Expression)]


def _joined(first: exp.Expression, joins: list[exp.Join], environment: Environment) -> FromSource:
    """The comma-separated groups of a FROM clause, each a chain of joins."""
    groups: list[tuple[exp.Expression, list[exp.Join]]] = [(first, [])]
    for join in joins:
        if _is_comma(join, environment):
            _refuse_pivot(join, environment)
            groups.append((join.this, []))
        else:
            if len(groups) > 1:
                _refuse_behind_comma(join, environment)
            groups[-1][1].append(join)
    sources = [_chain(head, chain, environment) for head, chain in groups]
    result = sources[0]
    for source, (head, _) in zip(sources[1:], groups[1:], strict=True):
        if set(result.scope.relations).isdisjoint(source.scope.relations):
            _refuse_same_name(result, source, head, environment)
        plan = Join(JoinKind.INNER, result.plan, source.plan, None)
        result = FromSource(plan, side_by_side(result.scope, source.scope))
    return result


def _refuse_pivot(join: exp.Join, environment: Environment) -> None:
    """To Spark a PIVOT behind a join is one of the joined rows, in the tree it is the side's."""
    pivots = join.this.args.get("pivots") or join.args.get("pivots")
    if pivots:
        raise environment.reading.text.unsupported(
            "a PIVOT after a join",
            pivots[0],
            hint="pivot a subquery in parentheses: `(SELECT ... FROM a JOIN b ...) PIVOT (...)`",
        )


def _refuse_behind_comma(join: exp.Join, environment: Environment) -> None:
    """To Spark its left side is all that stands before it, relations before the comma, too."""
    is_merging = join.args.get("method") or join.args.get("using")
    if is_merging or (join.side or "").upper() in ("RIGHT", "FULL"):
        raise environment.reading.text.unsupported(
            "a RIGHT, FULL, NATURAL or USING join after a comma",
            join,
            hint=(
                "write CROSS JOIN instead of the comma, or put parentheses around the joined tables"
            ),
        )


def _is_comma(join: exp.Join, environment: Environment) -> bool:
    text = environment.reading.text
    span = text.span_of(join.this)
    token = None if span is None else text.token_before(span.start)
    while token is not None and token.token_type is TokenType.L_PAREN:
        token = text.token_before(token.start)
    return token is not None and token.token_type is TokenType.COMMA


def _chain(head: exp.Expression, joins: list[exp.Join], environment: Environment) -> FromSource:
    source = _relation(head, environment)
    for join in joins:
        source = _join(source, join, environment)
    return source


def _relation(node: exp.Expression, environment: Environment) -> FromSource:
    text = environment.reading.text
    match node:
        case exp.Table() if isinstance(node.this, exp.Identifier):
            refuse_parts(node, _TABLE_PARTS, environment, f"table `{node.name}`")
            source = _table(node, environment)
        case exp.Subquery() if isinstance(node.this, exp.Table):
            refuse_parts(node, _SUBQUERY_PARTS, environment, "FROM")
            source = _aliased(_relation(node.this, environment), node, environment)
        case exp.Subquery():
            refuse_parts(node, _SUBQUERY_PARTS, environment, "a subquery in FROM")
            source = _derived(environment.read_query(node.this, environment), node, environment)
        case exp.Values():
            refuse_parts(node, _VALUES_PARTS, environment, "VALUES")
            rows = read_values(node, text, lambda query: environment.read_query(query, environment))
            source = _derived(rows, node, environment)
        case exp.Table() if isinstance(node.this, exp.Dot):
            hint = "a table's name has at most a catalog, a schema and the table name"
            raise text.unsupported("a name with more than three parts", node, hint=hint)
        case exp.Table():
            raise text.unsupported(f"the table function `{node.this.name}`", node)
        case _:
            raise text.unsupported(f"{node.key.upper()} in FROM", node)
    for pivot in node.args.get("pivots") or []:
        pivot_source = FromSource(*pivoted(source.plan, source.scope, pivot, environment.reading))
        source = _aliased(pivot_source, pivot, environment)
    return _chain_onto(source, node.args.get("joins") or [], environment)


def _chain_onto(source: FromSource, joins: list[exp.Join], environment: Environment) -> FromSource:
    for join in joins:
        source = _join(source, join, environment)
    return source


def _table(node: exp.Table, environment: Environment) -> FromSource:
    reading = environment.reading
    written = ".".join(piece.name for piece in node.parts)
    # In Spark `a.b` is never the WITH entry that is called "a.b".
    common = environment.common_tables.get(written.lower()) if len(node.parts) == 1 else None
    if common is not None:
        reading.read_entries.add(id(common.node))
        plan = common.plan(node)
        renamed = _columns(common.node, attributes_of(plan), environment)
        scope = relation_scope((node.alias or node.name,), renamed)
        return _aliased(FromSource(plan, scope), node, environment)
    table = _catalog_name(node, written, environment)
    # `delta` and a path are no names of two parts, but columns are called by them as if they were.
    full = reading.names.full([piece.name for piece in node.parts])
    schema = reading.catalog[table]
    access = reading.next_access(table)
    attributes = tuple(
        Attribute(f"{access}.{column.name}", column.name, column.type) for column in schema
    )
    span = name_span(node, environment)
    reading.mentions[span] = table
    rows = _live(Scan(access, table, attributes, span=span), reading)
    scope = relation_scope((node.alias,) if node.alias else full, attributes)
    return _aliased(FromSource(rows, scope), node, environment)


def _live(scan: Scan, reading: Reading) -> Plan:
    """The rows of a table that are there for queries: all, but where it has an expiry."""
    live = reading.live.get(scan.table)
    if live is None:
        return scan
    (column,) = (a for a in scan.attributes if a.name == live.column)
    return Select(scan, live.condition(column.ref()))


def name_span(node: exp.Table, environment: Environment) -> Span:
    """The written table name, without its alias, checked against the text."""
    text = environment.reading.text
    spans = [text.span_of(piece) for piece in node.parts]
    first, last = spans[0], spans[-1]
    if first is None or last is None:
        raise text.unsupported(f"the table `{node.name}` in an unsupported form", node)
    for piece, span in zip(node.parts, spans, strict=True):
        written = "" if span is None else text.sql[span.start : span.end]
        if written.strip("`").replace("``", "`") != piece.name:
            raise text.unsupported(f"the table `{node.name}` in an unsupported form", node)
    return text.span(first.start, last.end)


def _catalog_name(node: exp.Table, written: str, environment: Environment) -> str:
    reading = environment.reading
    parts = [piece.name for piece in node.parts]
    result = reading.names.find(parts)
    if result is not None:
        return result
    known = [*reading.catalog, *environment.common_tables]
    hint = meant_by(node, written, known)
    near = next((t for t in known if t.lower().split(".")[-1] == parts[-1].lower()), None)
    if is_path(parts):
        hint = "declare the table with this path under `tables`; in SQL its path must be absolute"
    elif len(parts) > 1 and near is not None:
        hint = f"if you mean `{near}`, add this name to its `names`, or set `catalog` and `schema`"
    raise reading.text.error(
        f"Table `{written}` is unknown in query `{reading.text.name}`",
        node,
        hint=hint or "declare it under `tables` in the workload file",
        code="table_unknown",
    )


def _derived(plan: Plan, node: exp.Expression, environment: Environment) -> FromSource:
    alias = node.alias or None
    renamed = _columns(node, attributes_of(plan), environment)
    return FromSource(plan, relation_scope(None if alias is None else (alias,), renamed))


def _aliased(source: FromSource, node: exp.Expression, environment: Environment) -> FromSource:
    """The source under the alias of a node, its columns renamed where the alias lists names."""
    if not node.alias:
        return source
    entries = source.scope.star(None)
    names = node.alias_column_names or [entry.name for entry in entries]
    if len(names) != len(entries):
        raise _column_count(node, len(names), len(entries), environment)
    alias = (node.alias.lower(),)
    renamed = tuple(
        ScopeEntry(alias, name, entry.expr) for name, entry in zip(names, entries, strict=True)
    )
    return FromSource(source.plan, Scope(renamed, (alias,)))


def _columns(
    node: exp.Expression, attributes: tuple[Attribute, ...], environment: Environment
) -> tuple[Attribute, ...]:
    """The attributes under the names an alias such as `t(a, b)` gives."""
    names = node.alias_column_names
    if not names:
        return attributes
    if len(names) != len(attributes):
        raise _column_count(node, len(names), len(attributes), environment)
    return tuple(
        replace(attribute, name=name) for attribute, name in zip(attributes, names, strict=True)
    )


def _column_count(
    node: exp.Expression, listed: int, there: int, environment: Environment
) -> Exception:
    return environment.reading.text.error(
        f"The alias `{node.alias}` lists {count_text(listed, 'column')}, but the relation has "
        f"{there}",
        node,
        hint="name every column, or none",
    )


def _join(left: FromSource, node: exp.Join, environment: Environment) -> FromSource:
    reading = environment.reading
    _refuse_pivot(node, environment)
    refuse_parts(node, _JOIN_PARTS, environment, "a join")
    right = _relation(node.this, environment)
    kind = _KINDS.get(((node.side or "").upper(), (node.kind or "").upper()))
    method = str(node.args.get("method") or "").upper()
    if kind is None or method not in ("", "NATURAL"):
        raise reading.text.unsupported(
            f"{' '.join((method, node.side, node.kind)).strip()} JOIN", node
        )
    _refuse_same_name(left, right, node, environment)
    pairs = same_names(left.scope, right.scope, node, reading.text)
    if pairs is not None:
        span = reading.text.span_of(node)
        plan = Join(kind, left.plan, right.plan, equal_names(pairs, span), span=span)
        return FromSource(plan, merged_scope(kind, left.scope, right.scope, pairs))
    both = side_by_side(left.scope, right.scope)
    on = node.args.get("on")
    condition = None
    if on is not None:
        reader = ExprReader(reading, Names(reading.text, both), "a join condition")
        condition = reader.read(on)
    plan = Join(kind, left.plan, right.plan, condition, span=reading.text.span_of(node))
    return FromSource(plan, joined_scope(kind, left.scope, right.scope, both))


def _refuse_same_name(
    left: FromSource, right: FromSource, node: exp.Expression, environment: Environment
) -> None:
    # Rewritten texts call a table by the end of its name alone.
    twice = {name[-1] for name in left.scope.relations}
    twice &= {name[-1] for name in right.scope.relations}
    if twice:
        name = sorted(twice)[0]
        raise environment.reading.text.unsupported(
            f"two relations named `{name}` in one FROM",
            node,
            hint="give each occurrence of the table its own alias",
        )

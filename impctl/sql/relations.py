"""FROM clauses: tables, derived tables, VALUES, LATERAL VIEW and joins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace
from sqlglot import exp
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]  # re-exported silently

from impctl.data.schema import INTEGER, Kind, SqlType, from_spark
from impctl.errors import count_text
from impctl.expr import nodes as e
from impctl.plan.nodes import Attribute, Explode, Join, JoinKind, OneRow, Plan, Scan, Select
from impctl.sql.expressions import ExprReader, arguments_of, function_name
from impctl.sql.names import is_path
from impctl.sql.pivot import pivoted
from impctl.sql.scope import (
    FromSource,
    Names,
    ParseContext,
    Scope,
    ScopeEntry,
    joined_scope,
    known_type,
    relation_scope,
    side_by_side,
    table_hint,
)
from impctl.sql.text import Node, SqlText

# USING and NATURAL: common columns appear once and first in `*`, and first in `t.*`. A join is
# refused where Spark pairs columns other than by one name on each side. Source: Spark's Analyzer,
# rule ResolveNaturalAndUsingJoin.

Pairs = Sequence[tuple[ScopeEntry, ScopeEntry]]


def same_names(left: Scope, right: Scope, node: exp.Join, text: SqlText) -> Pairs | None:
    """The columns that USING or NATURAL pairs; None for any other join."""
    if str(node.args.get("method") or "").upper() == "NATURAL":
        return _natural(left, right, node, text)
    using = node.args.get("using") or []
    if not using:
        return None
    result = []
    for identifier in using:
        if not isinstance(identifier, exp.Identifier | exp.Column):
            raise text.unsupported("an expression in USING", identifier, hint="use ON instead")
        column = identifier if isinstance(identifier, exp.Column) else exp.column(identifier.copy())
        for side in (left, right):
            Names(text, side).column(column)
        result.append((left.find(None, column.name)[0], right.find(None, column.name)[0]))
    return result


def _natural(left: Scope, right: Scope, node: exp.Join, text: SqlText) -> Pairs:
    pairs = [(entry, match) for entry in left.star(None) for match in right.find(None, entry.name)]
    counts = Counter(entry.name.lower() for entry, _ in pairs)
    if any(count > 1 for count in counts.values()) or any(a.name != b.name for a, b in pairs):
        # Spark pairs the first ones there, and distinguishes upper from lower case.
        raise text.unsupported(
            "a NATURAL join whose sides have duplicate column names, or names that differ in case",
            node,
            hint="use USING or ON",
        )
    return pairs


def equal_names(pairs: Pairs, span: e.Span | None) -> e.Expr | None:
    """Equality of each pair; None without pairs."""
    equals = [e.Compare(e.CompareOp.EQUAL, a.expr, b.expr, span=span) for a, b in pairs]
    return e.conjunction(equals, span) if equals else None


def merged_scope(kind: JoinKind, left: Scope, right: Scope, pairs: Pairs) -> Scope:
    """Names after a join: merged columns once and first in `*`, and first in `t.*`."""
    seen = joined_scope(kind, left, right, side_by_side(left, right))
    count = len(left.entries)
    lefts = [left.entries.index(a) for a, _ in pairs]
    if kind in (JoinKind.SEMI, JoinKind.ANTI):
        return replace(seen, entries=_first(lefts, seen.entries))
    rights = [count + right.entries.index(b) for _, b in pairs]
    merged = [
        ScopeEntry(None, a.name, _merged(kind, seen.entries[i].expr, seen.entries[j].expr))
        for (a, _), i, j in zip(pairs, lefts, rights, strict=True)
    ]
    hidden = {*lefts, *rights}
    rest = tuple(
        replace(entry, is_plain=False) if position in hidden else entry
        for position, entry in enumerate(seen.entries)
    )
    return replace(seen, entries=(*merged, *_first([*lefts, *rights], rest)))


def _first(positions: Sequence[int], entries: Sequence[ScopeEntry]) -> tuple[ScopeEntry, ...]:
    """The entries at these positions, then all others."""
    others = [entry for index, entry in enumerate(entries) if index not in positions]
    return (*(entries[index] for index in positions), *others)


def _merged(kind: JoinKind, left: e.Expr, right: e.Expr) -> e.Expr:
    if kind is JoinKind.FULL:
        return e.Coalesce((left, right))
    return right if kind is JoinKind.RIGHT else left


# LATERAL VIEW, and generators in SELECT. Columns have the written names or Spark's; names are
# required if their number is uncertain. A generator in SELECT is the LATERAL VIEW of a query over
# the rows that WHERE keeps, and its columns replace it; there may be one per list.

AS_VIEW = "`LATERAL VIEW explode(x) t AS element`"
_EXAMPLES = {
    "LATERAL VIEW": ("LATERAL VIEW", AS_VIEW),
    "SELECT": ("generator", "`SELECT explode(x) AS element`"),
}
"""What a generator of a clause is called, and how it is written."""

_GENERATORS = frozenset({"explode", "explode_outer", "posexplode", "posexplode_outer"})


def exploded(source: FromSource, node: exp.Lateral, context: ParseContext) -> FromSource:
    """Explode the rows of a plan; QueryError where refused."""
    call, alias = node.this, node.args.get("alias")
    if not node.args.get("view") or not is_generator(call):
        raise context.text.unsupported(
            f"LATERAL VIEW of `{function_name(call) or call.key}`",
            call,
            hint="explode and posexplode are supported",
        )
    names = [column.name for column in (alias.columns if alias is not None else [])]
    is_outer = bool(node.args.get("outer"))
    plan = _exploded_rows(source, "LATERAL VIEW", call, names, context, outer=is_outer)
    called = None if alias is None or alias.this is None else (alias.this.name,)
    return FromSource(plan, side_by_side(source.scope, relation_scope(called, plan.made)))


def is_generator(node: Node) -> bool:
    """Whether the node is a generator call, which makes one row per element."""
    return function_name(node) in _GENERATORS


def read_generated(
    items: Sequence[Node], source: FromSource, context: ParseContext
) -> tuple[Node, Explode] | None:
    """The generator of the SELECT list and the exploded rows, or None."""
    generators = [item for item in items if is_generator(_called(item))]
    if not generators:
        return None
    if len(generators) > 1:
        raise context.text.unsupported(
            "several generator functions in one SELECT list",
            _called(generators[1]),
            hint=f"write each as {AS_VIEW} after FROM",
        )
    (item,) = generators
    if isinstance(item, exp.Aliases):
        names = [part.name for part in item.expressions]
    else:
        names = [item.alias] if item.alias else []
    return item, _exploded_rows(source, "SELECT", _called(item), names, context)


def _called(item: Node) -> Node:
    """An item of a SELECT list without aliases."""
    inner = item.this if isinstance(item, exp.Aliases) else item.unalias()
    return inner if isinstance(inner, Node) else item


def _exploded_rows(
    source: FromSource,
    clause: str,
    call: Node,
    names: Sequence[str],
    context: ParseContext,
    *,
    outer: bool = False,
) -> Explode:
    text = context.text
    name = function_name(call) or ""
    function = name.removesuffix("_outer")
    arguments = arguments_of(call)
    if len(arguments) != 1:
        raise text.unsupported(f"{clause} of `{name}` with several values", call)
    array = ExprReader(context, Names(text, source.scope), clause).read(arguments[0])
    columns = _columns(clause, call, names, known_type(array), context)
    ids = context.fresh("x", [attribute.name for attribute in columns])
    columns = tuple(replace(item, id=identity) for item, identity in zip(columns, ids, strict=True))
    outer = outer or name != function
    return Explode(source.plan, function, array, columns, outer, span=text.span_of(call))


def _columns(
    clause: str, call: Node, names: Sequence[str], kind: SqlType | None, context: ParseContext
) -> tuple[Attribute, ...]:
    """New columns without ids: a position, then an element, or key and value."""
    function = (function_name(call) or "").removesuffix("_outer")
    position = ["pos"] if function == "posexplode" else []
    is_map = kind is not None and kind.kind is Kind.OTHER and kind.detail.startswith("map<")
    is_array = kind is not None and kind.kind is Kind.OTHER and kind.detail.startswith("array<")
    if not names and not is_map and not is_array:
        raise context.text.unsupported(
            f"a {_EXAMPLES[clause][0]} without column names",
            call,
            hint=f"name the columns, as in {_EXAMPLES[clause][1]}",
        )
    elements = len(names) - len(position) if names else (2 if is_map else 1)
    if elements not in (1, 2) or (is_map and elements != 2) or (is_array and elements != 1):
        raise context.text.error(
            f"{clause} names {count_text(len(names), 'column')}, but `{function}` returns "
            "a different number",
            call,
            hint="name one column for an array, two for a map, and one more for a position",
        )
    defaults = [*position, *(["key", "value"] if elements == 2 else ["col"])]
    types = [*(INTEGER for _ in position), *_element_types(kind, elements)]
    return tuple(
        Attribute("", name, type_, nullable=True)
        for name, type_ in zip(names or defaults, types, strict=True)
    )


def _element_types(kind: SqlType | None, elements: int) -> list[SqlType | None]:
    """Element types; None for one that is not plain."""
    detail = "" if kind is None else kind.detail
    if elements == 1:
        return [from_spark(detail.removeprefix("array<").removesuffix(">"))]
    key, _, value = detail.removeprefix("map<").removesuffix(">").partition(",")
    return [from_spark(key), from_spark(value)]


# `VALUES (1, 'a'), (2, 'b')` is `SELECT 1 AS col1, 'a' AS col2 UNION ALL SELECT 2, 'b'`. Values of
# a column must have one type or be NULL, since Spark's common type is not that of UNION. The UNIONs
# form a balanced tree to limit the plan's depth.

MOST_ROWS = 200
"""Each costs an operator or two; more rows belong in a table."""


def read_values(node: exp.Values, text: SqlText, read: Callable[[Node], Plan]) -> Plan:
    """Read VALUES, subqueries by `read`; QueryError for anything else."""
    rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in node.expressions]
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise text.error(
            f"The rows of VALUES have different numbers of values, from {min(widths)} to "
            f"{max(widths)}",
            node,
            hint="write the same number of values in each row",
        )
    if len(rows) > MOST_ROWS:
        raise text.unsupported(
            f"VALUES of more than {MOST_ROWS} rows", node, hint="store them in a table"
        )
    for value in (value for row in rows for value in row):
        if isinstance(value, exp.Alias):
            raise text.unsupported(
                "an alias inside VALUES",
                value,
                hint="put parentheses around each row: `(VALUES (1), (2)) AS v(n)`",
            )
    selects = [_selected(row) for row in rows]
    _refuse_types(selects, node, text, read)
    return read(_together(selects))


def _selected(row: Sequence[Node]) -> Node:
    items = (
        exp.Alias(this=value, alias=exp.to_identifier(f"col{number}"))
        for number, value in enumerate(row, start=1)
    )
    return exp.Select(expressions=list(items))


def _together(rows: Sequence[Node]) -> Node:
    if len(rows) == 1:
        return rows[0]
    half = len(rows) // 2
    # In brackets, like any set operation on the right side of another.
    right = exp.Subquery(this=_together(rows[half:]))
    return exp.Union(this=_together(rows[:half]), expression=right, distinct=False)


def _refuse_types(
    selects: Sequence[Node], node: exp.Values, text: SqlText, read: Callable[[Node], Plan]
) -> None:
    """QueryError where values of a column have several types; NULL has none."""
    rows = [read(select).attributes for select in selects]
    for number, column in enumerate(zip(*rows, strict=True), start=1):
        types = {attribute.type for attribute in column}
        kinds = {kind for kind in types if kind is not None and kind.kind is not Kind.NULL}
        if len(kinds) > 1:
            named = " and ".join(f"`{kind}`" for kind in sorted(map(str, kinds)))
            raise text.unsupported(
                f"VALUES with {named} in column {number}", node, hint="cast the values to one type"
            )


# FROM clauses. Every occurrence of a table is a separate access, whose span is its written name; a
# common table expression used twice is read twice. JOIN is read as if it bound tighter than the
# comma. In Spark it does not (`spark.sql.ansi.relationPrecedence`), so a join after a comma is
# refused if this changes rows or columns.

_KINDS = {
    ("", ""): JoinKind.INNER, ("", "INNER"): JoinKind.INNER, ("", "CROSS"): JoinKind.INNER,
    ("LEFT", ""): JoinKind.LEFT, ("LEFT", "OUTER"): JoinKind.LEFT,
    ("RIGHT", ""): JoinKind.RIGHT, ("RIGHT", "OUTER"): JoinKind.RIGHT,
    ("FULL", ""): JoinKind.FULL, ("FULL", "OUTER"): JoinKind.FULL,
    ("", "SEMI"): JoinKind.SEMI, ("LEFT", "SEMI"): JoinKind.SEMI,
    ("", "ANTI"): JoinKind.ANTI, ("LEFT", "ANTI"): JoinKind.ANTI,
}  # fmt: skip
_JOIN_PARTS = frozenset({"this", "side", "kind", "method", "on", "using"})
_TABLE_PARTS = frozenset({"this", "db", "catalog", "alias", "joins", "pivots"})
_SUBQUERY_PARTS = frozenset({"this", "alias", "joins", "pivots"})
_VALUES_PARTS = frozenset({"expressions", "alias"})


def read_from(select: exp.Select, context: ParseContext) -> FromSource:
    clause = part(select, "from")
    if clause is None:
        return FromSource(OneRow(), Scope(()))
    source = _joined(clause.this, select.args.get("joins") or [], context)
    for lateral in select.args.get("laterals") or []:
        source = exploded(source, lateral, context)
    return source


def part(node: Node, name: str) -> Node | None:
    """An argument whose name newer sqlglot versions write with an underscore."""
    result = node.args.get(name)
    return result if result is not None else node.args.get(f"{name}_")


def is_entry(table: Node, top: Node | None = None) -> bool:
    """Whether a table's name means an entry of a WITH clause that is visible there; only of clauses
    inside `top`, if given."""
    inner: Any = table
    outer: Any = table.parent
    while outer is not None and inner is not top:
        clause = outer if isinstance(outer, exp.With) else part(outer, "with")
        entries = [] if clause is None or clause is inner else clause.expressions
        is_recursive = clause is not None and bool(clause.args.get("recursive"))
        for entry in entries:
            if entry is inner and not is_recursive:
                break
            if entry.alias.lower() == table.name.lower():
                return True
            if entry is inner:
                break
        inner, outer = outer, outer.parent
    return False


def refuse_parts(node: Node, known: frozenset[str], context: ParseContext, what: str) -> None:
    """Refuse a node with parts that are not known."""
    text = context.text
    for name, value in node.args.items():
        if name.rstrip("_") in known or not value:
            continue
        items = value if isinstance(value, list) else [value]
        nodes = (item for item in items if isinstance(item, Node))
        part = next((item for item in nodes if text.span_of(item) is not None), node)
        label = name.rstrip("_").upper().replace("_", " ")
        raise text.unsupported(f"{_CLAUSES.get(name.rstrip('_'), label)} in {what}", part)


_CLAUSES = {
    "sample": "TABLESAMPLE", "laterals": "LATERAL VIEW", "version": "time travel",
    "when": "time travel", "sort": "SORT BY", "cluster": "CLUSTER BY", "by_name": "BY NAME",
    "distribute": "DISTRIBUTE BY", "locks": "FOR UPDATE",
}  # fmt: skip


def _joined(first: Node, joins: list[exp.Join], context: ParseContext) -> FromSource:
    """Comma-separated groups of a FROM clause, each a chain of joins."""
    groups: list[tuple[Node, list[exp.Join]]] = [(first, [])]
    for join in joins:
        if _is_comma(join, context):
            _refuse_pivot(join, context)
            groups.append((join.this, []))
        else:
            if len(groups) > 1:
                _refuse_behind_comma(join, context)
            groups[-1][1].append(join)
    sources = [_chain(_relation(head, context), chain, context) for head, chain in groups]
    result = sources[0]
    for source, (head, _) in zip(sources[1:], groups[1:], strict=True):
        if set(result.scope.relations).isdisjoint(source.scope.relations):
            _refuse_same_name(result, source, head, context)
        plan = Join(JoinKind.INNER, result.plan, source.plan, None)
        result = FromSource(plan, side_by_side(result.scope, source.scope))
    return result


def _refuse_pivot(join: exp.Join, context: ParseContext) -> None:
    """Spark applies a PIVOT after a join to the joined rows; the tree attaches it to one side."""
    pivots = join.this.args.get("pivots") or join.args.get("pivots")
    if pivots:
        raise context.text.unsupported(
            "a PIVOT after a join",
            pivots[0],
            hint="pivot a subquery in parentheses: `(SELECT ... FROM a JOIN b ...) PIVOT (...)`",
        )


def _refuse_behind_comma(join: exp.Join, context: ParseContext) -> None:
    """Spark takes everything before the join, including relations before the comma, as its left
    side."""
    is_merging = join.args.get("method") or join.args.get("using")
    if is_merging or (join.side or "").upper() in ("RIGHT", "FULL"):
        raise context.text.unsupported(
            "a RIGHT, FULL, NATURAL or USING join after a comma",
            join,
            hint="write CROSS JOIN instead of the comma, or put parentheses around the joined "
            "tables",
        )


def _is_comma(join: exp.Join, context: ParseContext) -> bool:
    text = context.text
    span = text.span_of(join.this)
    token = None if span is None else text.words.before(span.start)
    while token is not None and token.token_type is TokenType.L_PAREN:
        token = text.words.before(token.start)
    return token is not None and token.token_type is TokenType.COMMA


def _chain(source: FromSource, joins: list[exp.Join], context: ParseContext) -> FromSource:
    for join in joins:
        source = _join(source, join, context)
    return source


def _relation(node: Node, context: ParseContext) -> FromSource:
    text = context.text
    match node:
        case exp.Table() if isinstance(node.this, exp.Identifier):
            refuse_parts(node, _TABLE_PARTS, context, f"table `{node.name}`")
            source = _table(node, context)
        case exp.Subquery() if isinstance(node.this, exp.Table):
            refuse_parts(node, _SUBQUERY_PARTS, context, "FROM")
            source = _aliased(_relation(node.this, context), node, context)
        case exp.Subquery():
            refuse_parts(node, _SUBQUERY_PARTS, context, "a subquery in FROM")
            rows = context.plan_of(node.this)
            source = _aliased(_unnamed(rows), node, context)
        case exp.Values():
            refuse_parts(node, _VALUES_PARTS, context, "VALUES")
            rows = read_values(node, text, lambda query: context.plan_of(query))
            source = _aliased(_unnamed(rows), node, context)
        case exp.Table() if isinstance(node.this, exp.Dot):
            hint = "a table's name has at most a catalog, a schema and the table name"
            raise text.unsupported("a name with more than three parts", node, hint=hint)
        case exp.Table():
            raise text.unsupported(f"the table function `{node.this.name}`", node)
        case _:
            raise text.unsupported(f"{node.key.upper()} in FROM", node)
    for pivot in node.args.get("pivots") or []:
        source = _aliased(pivoted(source, pivot, context), pivot, context)
    return _chain(source, node.args.get("joins") or [], context)


def _table(node: exp.Table, context: ParseContext) -> FromSource:
    written = ".".join(piece.name for piece in node.parts)
    # In Spark `a.b` is never the WITH entry named "a.b".
    common = context.common_tables.get(written.lower()) if len(node.parts) == 1 else None
    if common is not None:
        context.read_entries.add(id(common.node))
        rows = _unnamed(common.plan(node))
        return _aliased(_aliased(rows, common.node, context), node, context)
    table = _catalog_name(node, written, context)
    # `delta` and a path are not a name of two parts, but they qualify columns like one.
    full = context.names.full([piece.name for piece in node.parts])
    schema = context.catalog[table]
    access = context.next_access(table)
    attributes = tuple(
        Attribute(f"{access}.{column.name}", column.name, column.type) for column in schema
    )
    span = name_span(node, context)
    context.mentions[span] = table
    plan = _live(Scan(access, table, attributes, span=span), context)
    scope = relation_scope((node.alias,) if node.alias else full, attributes)
    return _aliased(FromSource(plan, scope), node, context)


def _live(scan: Scan, context: ParseContext) -> Plan:
    """The rows that queries see: all, except where the table has an expiry."""
    live = context.live.get(scan.table)
    if live is None:
        return scan
    (column,) = (a for a in scan.attributes if a.name == live.column)
    return Select(scan, live.condition(column.ref()))


def name_span(node: exp.Table, context: ParseContext) -> e.Span:
    """The written table name without alias, checked against the text."""
    text = context.text
    spans = [text.span_of(piece) for piece in node.parts]
    first, last = spans[0], spans[-1]
    if first is None or last is None:
        raise text.unsupported(f"the table `{node.name}` in an unsupported form", node)
    for piece, span in zip(node.parts, spans, strict=True):
        written = "" if span is None else text.sql[span.start : span.end]
        if written.strip("`").replace("``", "`") != piece.name:
            raise text.unsupported(f"the table `{node.name}` in an unsupported form", node)
    return text.span(first.start, last.end)


def _catalog_name(node: exp.Table, written: str, context: ParseContext) -> str:
    parts = [piece.name for piece in node.parts]
    result = context.names.find(parts)
    if result is not None:
        return result
    known = [*context.catalog, *context.common_tables]
    hint = table_hint(node, written, known)
    near = next((t for t in known if t.lower().split(".")[-1] == parts[-1].lower()), None)
    if is_path(parts):
        hint = "declare the table with this path under `tables`; in SQL its path must be absolute"
    elif len(parts) > 1 and near is not None:
        hint = f"if you mean `{near}`, add this name to its `names`, or set `catalog` and `schema`"
    raise context.text.error(
        f"Table `{written}` is unknown in query `{context.text.name}`",
        node,
        hint=hint or "declare it under `tables` in the workload file",
        code="table_unknown",
    )


def _unnamed(plan: Plan) -> FromSource:
    return FromSource(plan, relation_scope(None, plan.attributes))


def _aliased(source: FromSource, node: Node, context: ParseContext) -> FromSource:
    """The source under the alias of a node, with the alias's column names if it has any."""
    if not node.alias:
        return source
    entries = source.scope.star(None)
    names = node.alias_column_names or [entry.name for entry in entries]
    check_alias(node, len(entries), context)
    alias = (node.alias.lower(),)
    renamed = tuple(
        ScopeEntry(alias, name, entry.expr) for name, entry in zip(names, entries, strict=True)
    )
    return FromSource(source.plan, Scope(renamed, (alias,)))


def check_alias(node: Node, columns: int, context: ParseContext) -> None:
    """QueryError where an alias such as `t(a, b)` does not name all columns of the relation."""
    names = node.alias_column_names
    if names and len(names) != columns:
        raise context.text.error(
            f"The alias `{node.alias}` lists {count_text(len(names), 'column')}, but the relation "
            f"has {columns}",
            node,
            hint="name every column, or none",
        )


def _join(left: FromSource, node: exp.Join, context: ParseContext) -> FromSource:
    _refuse_pivot(node, context)
    refuse_parts(node, _JOIN_PARTS, context, "a join")
    right = _relation(node.this, context)
    kind = _KINDS.get(((node.side or "").upper(), (node.kind or "").upper()))
    method = str(node.args.get("method") or "").upper()
    if kind is None or method not in ("", "NATURAL"):
        raise context.text.unsupported(
            f"{' '.join((method, node.side, node.kind)).strip()} JOIN", node
        )
    _refuse_same_name(left, right, node, context)
    pairs = same_names(left.scope, right.scope, node, context.text)
    if pairs is not None:
        span = context.text.span_of(node)
        plan = Join(kind, left.plan, right.plan, equal_names(pairs, span), span=span)
        return FromSource(plan, merged_scope(kind, left.scope, right.scope, pairs))
    both = side_by_side(left.scope, right.scope)
    on = node.args.get("on")
    condition = None
    if on is not None:
        reader = ExprReader(context, Names(context.text, both), "a join condition")
        condition = reader.read(on)
    plan = Join(kind, left.plan, right.plan, condition, span=context.text.span_of(node))
    return FromSource(plan, joined_scope(kind, left.scope, right.scope, both))


def _refuse_same_name(
    left: FromSource, right: FromSource, node: Node, context: ParseContext
) -> None:
    # Rewritten texts use only the last part of a table's name.
    twice = {name[-1] for name in left.scope.relations}
    twice &= {name[-1] for name in right.scope.relations}
    if twice:
        name = sorted(twice)[0]
        raise context.text.unsupported(
            f"two relations named `{name}` in one FROM",
            node,
            hint="give each occurrence of the table its own alias",
        )

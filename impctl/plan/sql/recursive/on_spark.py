"""Which recursion Spark surely refuses, so that nobody need start it to hear so.

Law: it is told by the text alone, and only what Spark 4.3 refuses whatever its tables hold: of
entries that read themselves it runs those of UNION ALL, and it knows no clause behind them. What it
may run is left to it.
Out of scope: what impctl reads (`plan.sql.recursive.clause`).
"""

from __future__ import annotations

from sqlglot import exp

from impctl.plan.sql.relation import part
from impctl.plan.sql.subquery import unwrapped

_FOREIGN = ("search", "cycle")
"""Clauses on WITH that its grammar lacks."""


def is_refused_by_spark(tree: exp.Expression) -> bool:
    """Whether a WITH clause anywhere in the query, in use or not, has what Spark does not run."""
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


def _is_union_all(query: exp.Expression) -> bool:
    """Of several parts the last UNION counts: what stands before it may drop what comes twice."""
    result = unwrapped(query)
    return isinstance(result, exp.Union) and not result.args.get("distinct")


def reads_name(node: exp.Expression, name: str) -> bool:
    """Whether the query reads a relation of that name which no WITH inside it gives."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if isinstance(current, exp.Table) and [p.name.lower() for p in current.parts] == [name]:
            return True
        clause = part(current, "with")
        if clause is None:
            waiting += [child for child in current.iter_expressions() if child is not clause]
            continue
        is_hidden = False
        for entry in clause.expressions:
            is_same = entry.alias.lower() == name
            is_hidden |= is_same and bool(clause.args.get("recursive"))
            waiting += [] if is_hidden else [entry.this]
            is_hidden |= is_same
            if is_hidden:
                break
        if not is_hidden:
            waiting += [child for child in current.iter_expressions() if child is not clause]
    return False

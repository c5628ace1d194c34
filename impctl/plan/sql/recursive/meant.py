"""What a name that is no table's may have meant: a table, or a WITH entry, also the one around it.

Law: it only helps to mend an error; nothing is read by it. Without RECURSIVE an entry is not known
inside itself, which is said of a name that is its own, rightly spelt or nearly.
Out of scope: which name means what (`plan.sql.relation`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlglot import exp

from impctl.plan.sql.scope import did_you_mean


def meant_by(node: exp.Table, written: str, known: Iterable[str]) -> str | None:
    """A hint for the name, given the tables and entries `known` there; None for no idea."""
    around = list(_around(node)) if len(node.parts) == 1 else []
    for entry in around:
        if entry.alias.lower() == written.lower():
            return f"write WITH RECURSIVE: without it `{entry.alias}` is unknown inside itself"
    hint = did_you_mean(written, [*known, *(entry.alias for entry in around)])
    for entry in around:
        if hint is not None and f"`{entry.alias}`" in hint and not _is_recursive(entry):
            return f"{hint} An entry that reads itself needs WITH RECURSIVE"
    return hint


def _around(node: exp.Expression) -> Iterator[exp.CTE]:
    """The WITH entries that it stands in, the innermost first."""
    outer = node.parent
    while outer is not None:
        if isinstance(outer, exp.CTE):
            yield outer
        outer = outer.parent


def _is_recursive(entry: exp.CTE) -> bool:
    clause = entry.parent
    return clause is not None and bool(clause.args.get("recursive"))

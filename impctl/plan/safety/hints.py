"""What to do about a query that no sketch is safe for: a hint for each reason.

Law: a hint names only what would help: a column to sketch is one that was judged and is safe.
Out of scope: the reasons themselves (`plan.safety.verdict`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.data.schema import Kind
from impctl.expr.types import type_of
from impctl.plan.nodes import Aggregate, Query, Window, nodes_of
from impctl.plan.safety.verdict import Verdict

_MOMENT = "pass the time as a parameter (`:day` in the SQL, its value under `params`)"
_ONE_ANSWER = {
    "percentile_approx": "use `percentile`, which has exactly one result",
    "approx_percentile": "use `percentile`, which has exactly one result",
    "first": "use MIN_BY with a column that orders the rows",
    "last": "use MAX_BY with a column that orders the rows",
    "any_value": "use MIN or MAX, which have exactly one result",
    "collect_list": "compare COUNT of its argument instead, and only return the list",
    "collect_set": "compare COUNT(DISTINCT ...) instead, and only return the set",
    "mode": "use GROUP BY with COUNT(*) and ORDER BY ... LIMIT 1",
    **dict.fromkeys(
        (
            "curdate",
            "current_date",
            "current_time",
            "current_timestamp",
            "localtime",
            "localtimestamp",
            "now",
            "unix_timestamp",
        ),
        _MOMENT,
    ),
}
"""By the construct whose answer differs from run to run."""
_OTHER_RUNS = "remove it from the query, or compute it from the query's result"
_WITHOUT = "`sketch: none` keeps the query in the file without a sketch"


def hint_of(query: Query, verdict: Verdict, would_serve: Sequence[str]) -> str:
    """What to do; `would_serve` are columns (`table.column`) that are safe but no candidates."""
    if query.nondeterministic:
        name = query.nondeterministic[0][0].lower()
        return f"{_ONE_ANSWER.get(name, _OTHER_RUNS)}; {_WITHOUT}"
    if would_serve:
        listed = " or ".join(f"`{column}`" for column in would_serve)
        return f"add {listed} under `partitions` in the workload file; a sketch on it is safe"
    if _is_of_window(query, verdict):
        return (
            "a window function can use a sketch on a PARTITION BY column: add PARTITION BY if a "
            f"result per partition is acceptable; {_WITHOUT}"
        )
    text = _added_text(query)
    if text:
        return (
            f"{text} adds up text; cast it to a number first, for example CAST(x AS DECIMAL(18, 2))"
        )
    if "never negative" in verdict.reason:
        return (
            "if it never is, add a constraint such as CHECK (x >= 0) to the table, or group by a "
            f"column and sketch that; {_WITHOUT}"
        )
    return f"a column in GROUP BY is usually safe; {_WITHOUT}"


def _is_of_window(query: Query, verdict: Verdict) -> bool:
    """Whether it is a window function that stands in the way."""
    return verdict.span is not None and any(
        verdict.span in (node.span, *(call.span for call in node.calls))
        for node in nodes_of(query.root)
        if isinstance(node, Window)
    )


def _added_text(query: Query) -> str:
    """The first SUM or AVG of text, as the query has it; empty where there is none."""
    for node in nodes_of(query.root):
        for output in node.aggregates if isinstance(node, Aggregate) else ():
            call = output.call
            is_sum = call.function in ("sum", "avg") and len(call.arguments) == 1
            result = type_of(call.arguments[0]) if is_sum else None
            if result is not None and result.kind is Kind.STRING:
                span = call.span
                return f"`{query.sql[span.start : span.end]}`" if span else f"`{call.function}`"
    return ""

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

_MOMENT = "give the moment as a parameter (`:day` in the SQL, its value under `params`)"
_ONE_ANSWER = {
    "percentile_approx": "write `percentile`, which has one answer",
    "approx_percentile": "write `percentile`, which has one answer",
    "first": "write MIN_BY with a column that orders the rows",
    "last": "write MAX_BY with a column that orders the rows",
    "any_value": "write MIN or MAX, which have one answer",
    "collect_list": "compare COUNT of its argument in its place, and show the list",
    "collect_set": "compare COUNT(DISTINCT ...) in its place, and show the set",
    "mode": "write a GROUP BY with COUNT(*) and ORDER BY ... LIMIT 1",
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
_OTHER_RUNS = "leave it out of the query, or compute it from the query's answer"
_WITHOUT = "`sketch: none` keeps the query in the file without a sketch"


def hint_of(query: Query, verdict: Verdict, would_serve: Sequence[str]) -> str:
    """What to do; `would_serve` are columns (`table.column`) that are safe but no candidates."""
    if query.nondeterministic:
        name = query.nondeterministic[0][0].lower()
        return f"{_ONE_ANSWER.get(name, _OTHER_RUNS)}; {_WITHOUT}"
    if would_serve:
        listed = " or ".join(f"`{column}`" for column in would_serve)
        return f"name {listed} under `partitions` in the workload file: a sketch of it is safe"
    if _is_of_window(query, verdict):
        return (
            "a window function can have a sketch of a column in its PARTITION BY: "
            f"write one, if the answer may be per partition; {_WITHOUT}"
        )
    text = _added_text(query)
    if text:
        return f"{text} adds up text; cast it to a number first, as in CAST(x AS DECIMAL(18, 2))"
    if "never negative" in verdict.reason:
        return (
            "if it never is, add a CHECK constraint such as CHECK (x >= 0) to the table; "
            f"or group by a column and sketch that; {_WITHOUT}"
        )
    return f"a column that the query groups by usually is safe; {_WITHOUT}"


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
            found = type_of(call.arguments[0]) if is_sum else None
            if found is not None and found.kind is Kind.STRING:
                span = call.span
                return f"`{query.sql[span.start : span.end]}`" if span else f"`{call.function}`"
    return ""

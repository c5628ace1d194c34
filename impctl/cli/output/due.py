"""When queries are due, as lines of text.

Law: the first line says whether and when, the others why and what is pending; all times are UTC.
Out of scope: what would be done (`cli.output.foreseen`), JSON (`cli.output.json`).
"""

from __future__ import annotations

from impctl.errors import count_text
from impctl.service.results import DueResult, FreshEntry
from impctl.service.text import duration_text, moment_text


def due_word(result: DueResult) -> str:
    """In a word or two, for the line that sums up."""
    if result.due:
        return "due now"
    return "not due" if result.pending else "nothing pending"


def due_lines(result: DueResult) -> list[str]:
    """Whether it is due, when next, and why."""
    why = result.why if result.trigger in result.why else f"{result.why} ({result.trigger})"
    return [f"{result.query}: {_when(result)}", why, *_pending(result)]


def planned_due_text(result: DueResult) -> str:
    """The same in one line of a plan, which tells what is pending anyhow."""
    when = _when(result)
    if when == "not due":
        said = result.why
    elif result.pending:
        said = f"{when.removeprefix('due ')}: {result.why}"
    else:
        said = f"{when}, for {result.trigger}"
    if not result.pending or result.cost_ms is None:
        return f"due          {said}"
    whole = duration_text(result.cost_ms * result.margin)
    cost = duration_text(result.cost_ms)
    return f"due          {said} (estimate {cost}, {whole} with safety factor)"


def _when(result: DueResult) -> str:
    if result.due:
        by = "" if result.due_by is None else f", deadline {moment_text(result.due_by)}"
        return f"due now{by}"
    if result.due_at is None or result.start_at is None:
        return "not due"
    at = f"due at {moment_text(result.due_at)}"
    starts = f", starts {moment_text(result.start_at)}" if result.start_at != result.due_at else ""
    return f"{at}{starts}" if result.pending else f"nothing pending, next {at.removeprefix('due ')}"


def _pending(result: DueResult) -> list[str]:
    """What is pending and what that takes; nothing where nothing is."""
    if not result.pending:
        return []
    rows = "unknown number of rows" if result.rows is None else count_text(result.rows, "row")
    since = "" if result.oldest_at is None else f" since {moment_text(result.oldest_at)}"
    if result.cost_ms is None:
        return [f"pending{since}: {rows}, no estimate, because no run is recorded"]
    whole = duration_text(result.cost_ms * result.margin)
    cost = duration_text(result.cost_ms)
    return [f"pending{since}: {rows}, estimate {cost}, {whole} with safety factor"]


def fresh_text(fresh: FreshEntry) -> str:
    """How old what is pending is, against its bound."""
    age = duration_text(fresh.age_s * 1000)
    if fresh.bound_s is None:
        return f"the oldest pending change is {age} old"
    state = "late: " if fresh.late else ""
    limit = duration_text(fresh.bound_s * 1000)
    return f"{state}the oldest pending change is {age} old; the limit is {limit}"

"""Choose the attribute to sketch in each table access, among the safe ones.

Law: the chosen attributes are safe together (safe alone is not enough: two keys may exclude each
other). An access without a safe attribute stays unsketched, which is always sound. An attribute
that the user requests is chosen or refused with the reason, never replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.errors import Location, UnsafeSketchError
from impctl.plan import nodes as p
from impctl.plan.lineage import for_all
from impctl.safety.direction import Sketched
from impctl.safety.judge import Judges, Verdict, check_with_core, hint_of
from impctl.sketch.sketch import PARTITIONABLE
from impctl.types import AccessId, ColumnName, QueryName, TableName

if TYPE_CHECKING:
    from impctl.expr.nodes import Span
    from impctl.safety.facts import Fact

_TRIED, _NAMED = 30, 3
"""Maximum columns of a table examined for a hint, and named in it."""
_ALL_ROWS = (
    "set `lineage: all`: the sketch then holds everything that derives rows of WITH RECURSIVE"
)

Costs = Mapping[tuple[TableName, ColumnName], float]
"""Estimated cost of using a sketch on a column, for instance the bytes still to read."""


class Candidate(Struct, frozen=True):
    """A column considered for one access, and the decision on it."""

    access: AccessId
    column: ColumnName
    safe: bool
    chosen: bool
    reason: str
    span: Span | None = None


class SafeChoice(Struct, frozen=True):
    """The column to sketch per access, the verdict on all of them together, and why."""

    sketched: Sketched
    considered: tuple[Candidate, ...]
    verdict: Verdict


class _CandidateJudge(Struct, frozen=True):
    query: p.Query
    core: p.Plan
    facts: Collection[Fact]
    judges: Judges

    def of(self, sketched: Sketched) -> Verdict:
        return check_with_core(self.query, self.core, sketched, self.facts, self.judges)


class JudgedCandidate(Struct, frozen=True):
    """A candidate judged alone; smaller rank is better."""

    scan: p.Scan
    column: ColumnName
    verdict: Verdict
    rank: tuple[float, bool, int]


Weigher = Callable[[Sequence[JudgedCandidate]], Costs]


def choose_attributes(
    query: p.Query,
    candidates: Mapping[TableName, Sequence[ColumnName]],
    facts: Collection[Fact],
    requested: Mapping[TableName, ColumnName],
    *,
    core: p.Plan | None = None,
    weigh: Weigher | None = None,
    name: QueryName = "query",
    judges: Judges | None = None,
) -> SafeChoice:
    """Choose a safe set of attributes: the requested ones, else the cheapest, a grouping one first.
    `core`: the plan that sketches are maintained by, if not the query's. `weigh` returns the costs
    of safe options; options without a cost come last. Raises UnsafeSketchError if a requested
    attribute is not safe for any access of its table, or no attribute is safe."""
    judge = _CandidateJudge(query, query.root if core is None else core, facts, judges or Judges())
    options = _options(judge, candidates, requested)
    if weigh is not None:
        costs = weigh([option for option in options if option.verdict.safe])
        options = tuple(
            replace(o, rank=(costs.get((o.scan.table, o.column), math.inf), *o.rank[1:]))
            for o in options
        )
    for table, column in requested.items():
        _require(table, column, options, judge, candidates, name)
    sketched = _joint(judge, options, requested)
    used = {option.scan.table for option in options if option.scan.access in sketched}
    lost = [table for table in requested if table not in used]
    if lost:
        raise _not_together(lost[0], requested, name)
    if not sketched:
        raise _nothing_safe(judge, options, name)
    considered = tuple(_explained(option, options, sketched) for option in options)
    return SafeChoice(sketched, considered, judge.of(sketched))


def _options(
    judge: _CandidateJudge,
    candidates: Mapping[TableName, Sequence[ColumnName]],
    requested: Mapping[TableName, ColumnName],
) -> tuple[JudgedCandidate, ...]:
    """Every candidate of every access, judged alone, in order of the SQL text and preference."""
    result = []
    for scan in judge.query.root.scans:
        columns = (
            [requested[scan.table]] if scan.table in requested else candidates.get(scan.table, ())
        )
        for preference, column in enumerate(dict.fromkeys(columns)):
            verdict = judge.of({scan.access: column})
            # Grouping keys come first: capture needs no annotation of their rows.
            is_keyed = any(scan.access in keys for keys in verdict.key_columns.values())
            is_plain = not (is_keyed or scan.access in verdict.keyed)
            result.append(JudgedCandidate(scan, column, verdict, (0.0, is_plain, preference)))
    return tuple(result)


def _require(
    table: TableName,
    column: ColumnName,
    options: Sequence[JudgedCandidate],
    judge: _CandidateJudge,
    candidates: Mapping[TableName, Sequence[ColumnName]],
    name: QueryName,
) -> None:
    table_options = [option for option in options if option.scan.table == table]
    if not table_options:
        read = sorted({s.table for s in judge.query.root.scans})
        raise UnsafeSketchError(
            f"Query `{name}` does not read table `{table}`, so `{table}.{column}` cannot be"
            " sketched for it",
            hint=f"the query reads: {', '.join(read)}",
            code="sketch_table_not_read",
        )
    if any(option.verdict.safe for option in table_options):
        return
    alternatives = _options(judge, candidates, {})
    safe = dict.fromkeys(o.column for o in alternatives if o.scan.table == table and o.verdict.safe)
    verdict = table_options[0].verdict
    hint = f"no candidate of `{table}` is safe; a GROUP BY column usually is"
    if _is_safe_for_all(judge, table_options):
        hint = _ALL_ROWS
    elif safe:
        hint = f"safe for this query: {', '.join(f'`{table}.{column}`' for column in safe)}"
    raise UnsafeSketchError(
        f"A sketch of `{table}.{column}` is not safe for query `{name}`: {verdict.reason}",
        hint=hint,
        location=_location(verdict.span, name),
    )


def _location(span: Span | None, name: QueryName) -> Location | None:
    return None if span is None else Location(f"query `{name}`", span.line, span.column)


def _joint(
    judge: _CandidateJudge,
    options: Sequence[JudgedCandidate],
    requested: Mapping[TableName, ColumnName],
) -> dict[AccessId, ColumnName]:
    """Accesses added one by one, requested and best first, as long as all are safe together."""
    by_access: dict[AccessId, list[JudgedCandidate]] = {}
    for option in options:
        if option.verdict.safe:
            by_access.setdefault(option.scan.access, []).append(option)
    for ranked in by_access.values():
        ranked.sort(key=lambda option: option.rank)
    order = sorted(
        by_access.values(),
        key=lambda ranked: (ranked[0].scan.table not in requested, ranked[0].rank),
    )
    sketched: dict[AccessId, ColumnName] = {}
    for ranked in order:
        for option in ranked:
            tried = {**sketched, option.scan.access: option.column}
            if len(tried) == 1 or judge.of(tried).safe:
                sketched = tried
                break
    return {s.access: sketched[s.access] for s in judge.query.root.scans if s.access in sketched}


def _not_together(
    table: TableName, requested: Mapping[TableName, ColumnName], name: QueryName
) -> UnsafeSketchError:
    others = ", ".join(f"`{other}.{c}`" for other, c in requested.items() if other != table)
    return UnsafeSketchError(
        f"A sketch of `{table}.{requested[table]}` is safe for query `{name}` alone, but not"
        f" together with {others}",
        hint="sketch only one of them, or group by both",
        code="sketches_unsafe_together",
    )


def _nothing_safe(
    judge: _CandidateJudge, options: Sequence[JudgedCandidate], name: QueryName
) -> UnsafeSketchError:
    would_serve = [] if judge.query.nondeterministic else _would_serve(judge, options)
    if not options:
        listed = " or ".join(f"`{column}`" for column in would_serve)
        hint = (
            "it reads no column that can have a sketch; `sketch: none` keeps the query in the "
            "file without a sketch"
        )
        if would_serve:
            hint = f"add {listed} under `partitions` in the workload file"
        elif counts_every_row(judge.query.root):
            hint = (
                "every row counts, so no sketch can skip any. To maintain the result "
                "incrementally, set `answer: true` and add any column of the table under "
                "`partitions`. With `sketch: none`, each run reads the table"
            )
        return UnsafeSketchError(
            f"Query `{name}` has no candidate attribute to sketch", hint=hint, code="no_candidates"
        )
    first = options[0]
    count = len({(option.scan.table, option.column) for option in options})
    listed = f"none of {count} candidates is" if count > 1 else "the only candidate is not"
    return UnsafeSketchError(
        f"No sketch is safe for query `{name}`: {listed} safe; for"
        f" `{first.scan.table}.{first.column}`, {first.verdict.reason}",
        hint=_ALL_ROWS
        if _is_safe_for_all(judge, options)
        else hint_of(judge.query, first.verdict, would_serve),
        location=_location(first.verdict.span, name),
    )


def _is_safe_for_all(judge: _CandidateJudge, options: Sequence[JudgedCandidate]) -> bool:
    """Whether one would be safe if sketches contained all that derives rows of recursions."""
    root = for_all(judge.query.root)
    if root == judge.query.root:
        return False
    judge_for_all = replace(judge, query=replace(judge.query, root=root), core=for_all(judge.core))
    return any(judge_for_all.of({option.scan.access: option.column}).safe for option in options)


def _would_serve(judge: _CandidateJudge, options: Sequence[JudgedCandidate]) -> list[str]:
    """Safe columns that the query reads but that were not candidates."""
    known = {(option.scan.access, option.column) for option in options}
    result: dict[str, None] = {}
    for scan in judge.query.root.scans:
        for attribute in scan.attributes[:_TRIED]:
            name, kind = attribute.name, attribute.type
            if kind is None or kind.kind not in PARTITIONABLE or (scan.access, name) in known:
                continue
            if judge.of({scan.access: name}).safe:
                result[f"{scan.table}.{name}"] = None
    return list(result)[:_NAMED]


def _explained(
    option: JudgedCandidate, options: Sequence[JudgedCandidate], sketched: Sketched
) -> Candidate:
    access, verdict = option.scan.access, option.verdict
    result = Candidate(access, option.column, verdict.safe, False, verdict.reason, verdict.span)
    if not verdict.safe:
        return result
    chosen = sketched.get(access)
    if chosen is None:
        return replace(result, reason="safe alone, but not together with the chosen sketches")
    if chosen == option.column:
        return replace(result, chosen=True)
    best = next(o for o in options if o.scan.access == access and o.column == chosen)
    return replace(result, reason=f"safe, but `{chosen}` {_advantage(best, option)}")


def _advantage(best: JudgedCandidate, other: JudgedCandidate) -> str:
    cost, plain, preference = best.rank
    if cost < other.rank[0]:
        return "is expected to read less"
    if cost == other.rank[0] and plain < other.rank[1]:
        return "is a grouping attribute"
    if best.rank > other.rank:
        return "is safe together with the other sketches"
    return "is preferred" if preference < other.rank[2] else "was chosen"


def counts_every_row(plan: p.Plan) -> bool:
    """Whether every row affects the answer for any data, so that none can be skipped: no filter,
    join or limit, except HAVING over all rows together."""
    match plan:
        case p.Scan() | p.OneRow():
            return True
        case p.Select():
            return _is_of_all_rows(plan.child) and counts_every_row(plan.child)
        case p.Project() | p.Aggregate() | p.Distinct() | p.Sort() | p.Window():
            return counts_every_row(plan.child)
        case p.SetOperation(kind=p.SetKind.UNION):
            return counts_every_row(plan.left) and counts_every_row(plan.right)
        case _:
            return False


def _is_of_all_rows(plan: p.Plan) -> bool:
    while isinstance(plan, p.Project | p.Select):
        plan = plan.child
    return isinstance(plan, p.Aggregate) and not plan.keys and plan.grouping_sets is None

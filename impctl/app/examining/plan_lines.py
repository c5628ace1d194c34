"""The plan of a query line by line: how each operator is maintained, why, what it keeps and skips.

Law: says what is chosen and stored, decides nothing; state is shown only where it belongs to the
query as it stands now, and an operator without any keeps nothing.
Out of scope: attributes and sides of joins (`app.explain`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import assert_never

from impctl.app.capturing.definition import is_captured_alike
from impctl.app.capturing.lineage_advice import Followed, followed
from impctl.app.preparing.filters import filters_of, interval_texts
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.explanations import PlanEntry
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.workbench import Workbench
from impctl.compile.compile import Way
from impctl.compile.flows import Strategy
from impctl.compile.jointree.graph import TreeShape
from impctl.errors import ImpctlError, count_text
from impctl.expr.nodes import Span, walk
from impctl.plan.explain import PlanLine, describe
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Explode,
    Fixpoint,
    Join,
    LiveRows,
    OneRow,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetOperation,
    Sort,
    TopK,
    Window,
    Witness,
    nodes_of,
    scans_of,
)
from impctl.plan.recursion import recursion_notes
from impctl.sketch.sketch import Mode
from impctl.spark.expressions import DIALECT
from impctl.spark.predicates import live_condition
from impctl.store.records import StoredQuery
from impctl.types import AttributeId
from impctl.values import dataclass
from impctl.workload.models import QuerySpec

_NO_NOTES: Mapping[int, str] = {}


@dataclass(frozen=True, slots=True)
class StoredPieces:
    """What the store holds for a query: bytes by the name of each piece, and what it tells of
    fixpoints that are followed back from the answer."""

    stored: StoredQuery
    pieces: Mapping[str, int]
    followed: Sequence[Followed] = ()

    @property
    def bytes(self) -> int:
        return sum(self.pieces.values())


def kept_state(desk: Workbench, spec: QuerySpec, way: Way) -> StoredPieces | None:
    """The stored state; None where the query was not captured, or not as it stands now."""
    store = desk.reading_store()
    stored = None if store is None else store.load(spec.name)
    if store is None or stored is None:
        return None
    if stored.mode is not way.mode and not is_less(stored, way):
        return None
    if not is_captured_alike(desk, spec, stored):
        return None
    pieces: dict[str, int] = {}
    runs = store.run_refs(spec.name)
    for run in runs:
        pieces[run.arrangement] = pieces.get(run.arrangement, 0) + run.bytes
    return StoredPieces(stored, pieces, followed(runs))


def is_less(stored: StoredQuery, way: Way) -> bool:
    """Whether the capture could not fill the state of the way that is chosen for the query: on a
    row that fails, for want of memory, or as doubles were too close to call."""
    return stored.mode is Mode.RECAPTURE and way.mode is Mode.EXACT


def plan_entries(
    tables: PinnedTables,
    prepared: PreparedQuery,
    way: Way | None,
    kept: StoredPieces | None,
    notes: Mapping[int, str] = _NO_NOTES,
    keyed: Collection[AttributeId] = (),
) -> tuple[PlanEntry, ...]:
    """The lines in the order of `nodes_of`, the blocking operator with its reason.

    `notes` are more to say of a line, by its position; `keyed` are the columns that fixpoints are
    keyed on.
    """
    nodes = tuple(nodes_of(prepared.root))
    blocking = None if way is None or way.mode is Mode.EXACT else _blocking(nodes, way.span)
    held, read = _held(nodes, way, kept), _read(nodes, way)
    pushed = _pushed(tables, prepared, nodes, kept)
    recursive = recursion_notes(prepared.root, keyed)
    led = _led_to_answer(nodes, way, kept)
    entries = []
    lines = _flat(describe(prepared.root), 0)
    for position, ((depth, line), node) in enumerate(zip(lines, nodes, strict=True)):
        is_blocking, is_read = position == blocking, position in read
        why = _why(node, way, is_blocking=is_blocking, is_read=is_read)
        entries.append(
            PlanEntry(
                depth=depth,
                operator=line.operator,
                detail=line.detail,
                how="" if way is None else way.mode.value,
                why=_noted(why, notes.get(position), led.get(position), recursive.get(position)),
                place=prepared.place(line.span),
                state_bytes=held.get(position),
                pushed=pushed.get(position, ()),
            )
        )
    return tuple(entries)


def _noted(why: str, *notes: str | None) -> str:
    return "; ".join(part for part in (why, *notes) if part)


def _flat(line: PlanLine, depth: int) -> Iterator[tuple[int, PlanLine]]:
    yield depth, line
    for child in line.children:
        yield from _flat(child, depth + 1)


def _why(node: Plan, way: Way | None, *, is_blocking: bool, is_read: bool) -> str:
    """What maintaining does at this operator, or why it cannot; `is_read`: its groups are."""
    if way is None:
        return ""
    if is_blocking:
        return way.reason
    match way.mode:
        case Mode.EXACT if is_read:
            return "reads the rows of changed groups, stores a filter of keys; see its groups"
        case Mode.EXACT:
            return _in_tree(node, way) or _by_absorption(node, way) or _exactly(node)
        case Mode.TOUCH:
            return "adds the ranges of changed rows, computes nothing"
        case Mode.RECAPTURE:
            return "recomputed with the whole query"
        case _:
            assert_never(way.mode)


def _in_tree(node: Plan, way: Way) -> str:
    """What becomes of a join or grouping that a join tree stands for; empty for any other."""
    accesses = {scan.access for scan in scans_of(node)}
    trees = (shape for shape in way.shapes if isinstance(shape, TreeShape))
    if not any(accesses <= {a for one in tree.nodes for a in one.accesses} for tree in trees):
        return ""
    match node:
        case Join():
            return "part of the join tree, shown separately: writes no joined row"
        case Aggregate():
            return "its groups are those of the join tree"
    return ""


_LEAVES = {
    Scan: "changes enter here, each row with its range",
    Recursive: "rows of the enclosing fixpoint",
    OneRow: "constant rows",
}


def _exactly(node: Plan) -> str:
    """How the engine maintains an operator, in one breath."""
    match node:
        case Scan() | Recursive() | OneRow():
            return _LEAVES[type(node)]
        case Explode():
            return "processed by Spark"
        case Select() | Project() | Sort():
            return "processes each changed row by itself, stores nothing"
        case Join():
            return "joins changed rows of one side with the rows of the other, see its sides"
        case Aggregate():
            return "stores a row per group and counts per group and range"
        case Distinct():
            return "stores how often each row occurs"
        case SetOperation():
            return (
                "processes each changed row by itself"
                if node.all
                else "stores how often each row occurs"
            )
        case TopK():
            return "stores the first rows and candidates to follow them"
        case Window() if any(call.order for call in node.calls):
            return "stores its rows and sorts a window partition again when a row of it changes"
        case Window():
            return (
                "stores its rows and a value per window partition; a new value applies to all "
                "its rows"
            )
        case Fixpoint():
            return "stores its rows, each with the round that derived it"
        case Witness():
            return "stores the deciding rows and candidates to follow them"
        case _:
            assert_never(node)


def _by_absorption(node: Plan, way: Way) -> str:
    """What a fixpoint keeps whose rows have functions; empty for anything else."""
    if not isinstance(node, Fixpoint) or not way.provenance:
        return ""
    return (
        "stores its rows, and which table rows derive each; `why` uses them "
        f"(provenance by absorption, {way.provenance})"
    )


def _held(nodes: tuple[Plan, ...], way: Way | None, kept: StoredPieces | None) -> dict[int, int]:
    """Bytes of state by the position of the operator that it serves."""
    if way is None or way.compiled is None or kept is None:
        return {}
    held = dict.fromkeys(range(len(nodes)), 0)
    for name, owner in way.compiled.owners.items():
        position = _position(nodes, owner)
        if position is not None:
            held[position] += kept.pieces.get(name, 0)
    return held


def _led_to_answer(
    nodes: tuple[Plan, ...], way: Way | None, kept: StoredPieces | None
) -> dict[int, str]:
    """How much of fixpoints the answer stems from, as far as that is kept."""
    if way is None or way.compiled is None or kept is None:
        return {}
    owners = way.compiled.owners
    named = {one.note: owners.get(f"{one.name}.rows") for one in kept.followed}
    result = {n: _position(nodes, owner) for n, owner in named.items() if owner is not None}
    return {position: note for note, position in result.items() if position is not None}


def _read(nodes: tuple[Plan, ...], way: Way | None) -> frozenset[int]:
    """The positions of groupings and DISTINCTs whose groups are read when they change."""
    if way is None or way.compiled is None:
        return frozenset()
    read = {one.side for one in way.compiled.groupings if one.strategy is Strategy.FILES}
    result = (
        _position(nodes, owner)
        for name, owner in way.compiled.owners.items()
        # A semi join owns the DISTINCT that is made for it, too: of it its sides are told.
        if name.partition(".")[0] in read and isinstance(owner, Aggregate | Distinct)
    )
    return frozenset(at for at in result if at is not None)


def _position(nodes: tuple[Plan, ...], owner: Plan) -> int | None:
    """The operator of the whole plan that one of its core stands for: of its kind, at its place."""
    alike = [at for at, node in enumerate(nodes) if type(node) is type(owner)]
    there = [at for at in alike if nodes[at].span == owner.span and owner.span is not None]
    return there[0] if there else alike[0] if len(alike) == 1 else None


def _pushed(
    tables: PinnedTables,
    prepared: PreparedQuery,
    nodes: tuple[Plan, ...],
    kept: StoredPieces | None,
) -> dict[int, tuple[str, ...]]:
    """What is left out early, at scans and at conditions right above them."""
    ranges = {} if kept is None else _ranges(tables, prepared, kept.stored)
    result: dict[int, tuple[str, ...]] = {}
    for position, node in enumerate(nodes):
        if isinstance(node, Scan):
            total = len(tables.snapshot(node.table).schema.names)
            columns = f"reads {len(node.attributes)} of {count_text(total, 'column')}"
            lives = dict(prepared.query.live).get(node.table)
            expiry = () if lives is None else (_expiry(lives, prepared.now),)
            result[position] = (columns, *expiry, *ranges.get(node.access, ()))
        elif isinstance(node, Select) and isinstance(node.child, Scan):
            result[position] = ("pushed down to the scan",)
    return result


def _expiry(live: LiveRows, now: str) -> str:
    condition = live_condition(live).sql(DIALECT)
    return f"rows expire: at {now} a row is live if {condition}"


def _ranges(
    tables: PinnedTables, prepared: PreparedQuery, stored: StoredQuery
) -> dict[str, tuple[str, ...]]:
    """The ranges of each sketched access, and the files they leave; none where history is gone."""
    try:
        pruned = filters_of(tables, prepared, stored.sketches, stored.versions)
        totals = {
            scan.table: len(tables.snapshot(scan.table, stored.versions[scan.table]).files)
            for scan in prepared.scans
        }
    except ImpctlError:
        return {}
    result: dict[str, tuple[str, ...]] = {}
    for scan in prepared.scans:
        if scan.access in pruned.filters:
            texts = " or ".join(interval_texts(pruned.filters[scan.access])) or "no row"
            files = f"{len(pruned.files[scan.table])} of {count_text(totals[scan.table], 'file')}"
            result[scan.access] = (f"with the sketch: {texts}; Spark reads {files}",)
    return result


def _blocking(nodes: tuple[Plan, ...], span: Span | None) -> int:
    """Position of the lowest node with the blocking part in its expressions; else the root."""
    result = [
        position
        for position, node in enumerate(nodes)
        if span is not None and any(_holds(own, span) for own in _own_spans(node))
    ]
    return result[-1] if result else 0


def _own_spans(node: Plan) -> Iterator[Span | None]:
    yield node.span
    match node:
        case Select():
            yield from (part.span for part in walk(node.predicate))
        case Project():
            yield from (part.span for out in node.outputs for part in walk(out.expr))
        case Aggregate():
            yield from (part.span for key in node.keys for part in walk(key.expr))
            yield from (output.call.span for output in node.aggregates)
        case Window():
            yield from (call.span for call in node.calls)
        case _:
            return


def _holds(own: Span | None, span: Span) -> bool:
    return own is not None and own.start <= span.start and span.end <= own.end

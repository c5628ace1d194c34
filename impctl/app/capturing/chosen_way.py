"""How a query is maintained, at capture and ever after: verdict, sides of joins, circuit.

Law: a stored sketch is only used or maintained while its query is safe with the assumptions stored
beside it; nothing but these assumptions and the table's own CHECKs is believed. The core is judged
by all facts that the whole plan's verdict rests on, those of CHECKs too. What a capture chose for
the sides of joins holds until the next one.
Out of scope: whether the assumptions still hold of the data (`app.preparing.facts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from impctl.app.capturing.join_choice import JoinChooser, chooser_for
from impctl.app.capturing.kept_plan import answer_verdict, kept_plan
from impctl.app.capturing.meta import StateMeta
from impctl.app.preparing.facts import constraint_facts, fact_of
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.workbench import Workbench
from impctl.compile.buffers import KEEP_ALL, USUAL, BufferChoice, Buffers
from impctl.compile.build import with_answer
from impctl.compile.compile import Compiled, Way, answering_way, choose_way
from impctl.compile.flows import BlockedError, Strategy
from impctl.compile.jointree.cost import TreeChoice
from impctl.compile.jointree.graph import NoTree, Reason, TreeShape
from impctl.compile.jointree.shape import tree_shapes, trees_id
from impctl.errors import (
    ImpctlError,
    RecaptureNeededError,
    SchemaChangedError,
    UnsupportedError,
)
from impctl.expr.nodes import Span
from impctl.plan.nodes import scans_of
from impctl.rules.finalize import answer_plan
from impctl.safety.judge import Verdict, check_safety
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import Mode
from impctl.store.records import StoredQuery
from impctl.tables.changes import schema_change
from impctl.types import AccessId, TableName, TableVersion
from impctl.workload.models import JoinStrategy, Lineage, QuerySpec, StateKept

_ASKED = "as set by `buffer`"
_ALL_ASKED = "as set by `join: index` or `state: keep`"
_BESIDE_CLOCK = "its time-dependent constants update stored rows"
_UNCOUNTED = "the number of groups is unknown until the next capture"
_WITNESSES = "the sketch holds only witnesses where these suffice, see `impctl explain`"


def kept_buffers(spec: QuerySpec, chooser: JoinChooser) -> Buffers:
    """How much MIN, MAX and top-k keep: as the workload asks, else as was chosen and is usual."""
    match spec.buffer:
        case None:
            return replace(USUAL, of_group=chooser.buffer, of_piece=chooser.buffers)
        case int(size):
            return Buffers.of(size)
    return KEEP_ALL


def chosen_buffers(spec: QuerySpec, compiled: Compiled | None) -> Mapping[str, int]:
    """How much is kept of each piece that was bounded without the workload asking for it."""
    if spec.buffer is not None or compiled is None:
        return {}
    read = compiled.sides_by(Strategy.FILES)
    return {
        one.piece: one.size
        for one in compiled.buffers
        if one.size is not None and not one.pinned and one.piece not in read
    }


def why_not_bounded(prepared: PreparedQuery, meta: StateMeta | None, choice: BufferChoice) -> str:
    """Why no budget may bound a piece, by what is said of its state; empty where one may."""
    if prepared.spec.buffer is not None:
        return _ASKED
    if choice.pinned:
        return choice.pinned
    if prepared.moves_above:
        return _BESIDE_CLOCK
    if prepared.spec.join is JoinStrategy.INDEX or prepared.spec.state is StateKept.KEEP:
        return _ALL_ASKED
    is_counted = meta is None or choice.is_values or choice.piece in meta.buffer_groups
    return "" if is_counted else _UNCOUNTED


def chosen_way(
    prepared: PreparedQuery,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    chooser: JoinChooser,
    *,
    has_answer: bool = True,
) -> Way:
    """How the query's sketches are maintained, under the whole plan's verdict.

    Where the answer is to be kept and can be, by the plan of its rows; else by the core plan, and
    so where the state was captured without (`has_answer` is false). UnsupportedError where
    recursion is to be kept by absorption and cannot be.
    """
    way = _chosen(prepared, verdict, partitions, chooser, has_answer=has_answer)
    if chooser.absorbs is not None:
        _check_provenance(prepared, way)
    return way


def _chosen(
    prepared: PreparedQuery,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    chooser: JoinChooser,
    *,
    has_answer: bool,
) -> Way:
    scans = (*prepared.scans, *scans_of(prepared.query.root))
    accesses = {scan.access: scan.table for scan in scans}
    by_core, why, is_planned = None, "", False
    if prepared.spec.join is JoinStrategy.TREE:
        is_planned = _is_planned(prepared, verdict, partitions)
        if not is_planned:
            # A tree that is asked for in vain is refused, whatever becomes of the answer.
            by_core = _by_core(prepared, verdict, partitions, chooser)
    if prepared.spec.answer and has_answer:
        way = _by_answer(prepared, verdict, partitions, chooser, must_be_tree=is_planned)
        if isinstance(way, Way):
            return replace(way, accesses=accesses)
        why = way
    if by_core is None:
        by_core = _by_core(prepared, verdict, partitions, chooser)
    return replace(by_core, accesses=accesses, no_answer=why)


def _is_planned(
    prepared: PreparedQuery, verdict: Verdict, partitions: Mapping[AccessId, RangePartition]
) -> bool:
    """Whether sketches alone would be maintained by a tree; nothing is built to know it."""
    core = kept_plan(prepared, verdict, partitions).core
    return any(isinstance(shape, TreeShape) for shape in tree_shapes(core, {}))


def _by_answer(
    prepared: PreparedQuery,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    chooser: JoinChooser,
    *,
    must_be_tree: bool,
) -> Way | str:
    """How sketches are maintained beside the answer's rows, or why these are not kept.

    Where no tree tells them, joins are no trees, unless they must be.
    """
    answer = answer_plan(prepared.planned)
    judged = answer_verdict(prepared, answer, verdict, partitions)
    buffers = kept_buffers(prepared.spec, chooser)
    answering = partial(
        answering_way,
        answer,
        judged,
        partitions,
        chooser.sides,
        buffers=buffers,
        absorbs=chooser.absorbs,
    )
    choice = chooser.trees.choose(answer.kept)
    if choice.is_tree:
        try:
            way = answering(trees={})
            why = _without_tree(way)
            if way.has_tree:
                return way if must_be_tree else replace(way, trees=choice)
        except BlockedError as blocked:
            why = blocked.message
        if must_be_tree:
            return why
        choice = replace(
            choice, is_tree=False, reason=f"a join tree cannot materialize its result: {why}"
        )
    try:
        return replace(answering(), trees=choice)
    except BlockedError as blocked:
        return blocked.message


def _without_tree(way: Way) -> str:
    """Why no tree tells the rows of an answer, where one tells the sketches."""
    texts = [shape.text for shape in way.shapes if isinstance(shape, NoTree)]
    return f"a join tree cannot list its rows: {texts[0]}" if texts else ""


def _by_core(
    prepared: PreparedQuery,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    chooser: JoinChooser,
) -> Way:
    """How sketches are maintained that no answer is kept beside."""
    kept = kept_plan(prepared, verdict, partitions)
    # Touch rests on lineage: where a witness goes, a row that did not change takes its place.
    whole = replace(verdict, root_keyed=False) if kept.has_witnesses else verdict
    choose = partial(
        choose_way,
        kept.core,
        whole,
        kept.core_verdict(verdict, partitions),
        partitions,
        chooser.sides,
        buffers=kept_buffers(prepared.spec, chooser),
        absorbs=chooser.absorbs,
    )
    if prepared.spec.join is JoinStrategy.TREE:
        way = _with_trees(prepared, choose)
    else:
        way = _trees_or_not(choose, chooser.trees.choose(kept.core))
    reason = f"{way.reason}; {_WITNESSES}" if kept.has_witnesses else way.reason
    return replace(way, reason=reason, core=kept.core)


def _with_trees(prepared: PreparedQuery, choose: Callable[..., Way]) -> Way:
    """The way by trees, which of them follows from the plan alone; UnsupportedError where joins
    could be maintained, but not as trees."""
    way = choose(trees={})
    if way.has_tree:
        return way
    if way.compiled is None:
        plain = choose()
        if plain.compiled is None:
            return plain
        raise _no_tree(prepared, way.reason, way.span)
    for shape in way.shapes:
        if isinstance(shape, NoTree) and shape.reason is not Reason.ONE_TABLE:
            raise _no_tree(prepared, shape.text, shape.span)
    return way


def _trees_or_not(choose: Callable[..., Way], choice: TreeChoice) -> Way:
    """The way as chosen; without trees, too, where the engine has no circuit with them."""
    if choice.is_tree:
        way = choose(trees={}, blocks=choice.blocks)
        if way.has_tree:
            return replace(way, trees=choice)
        choice = replace(
            choice, is_tree=False, reason=f"a join tree cannot maintain it: {way.reason}"
        )
    return replace(choose(), trees=choice)


def _no_tree(prepared: PreparedQuery, why: str, span: Span | None) -> UnsupportedError:
    return UnsupportedError(
        f"Query `{prepared.spec.name}` sets `join: tree`, but its joins cannot form a tree: {why}",
        code="no_join_tree",
        hint="use `join: index`, or remove `join`",
        location=prepared.place(span),
    )


def _check_provenance(prepared: PreparedQuery, way: Way) -> None:
    """UnsupportedError where no recursion of the query is kept by absorption."""
    if way.provenance:
        return
    why = way.reason if way.compiled is None else "it has no WITH RECURSIVE with UNION"
    raise UnsupportedError(
        f"Query `{prepared.spec.name}` sets `provenance: absorption`, but cannot have it: {why}",
        code="no_provenance",
        hint="remove `provenance`: ranks maintain the same sketch",
        location=prepared.place(way.span) or prepared.spec.location,
    )


def capture_way(
    desk: Workbench,
    prepared: PreparedQuery,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    *,
    reads: bool = True,
) -> Way:
    """How the query's sketches are maintained if they are captured at the pinned versions.

    Where it `reads` no rows, whatever fan-outs decide is left to the index join.
    """
    chooser = chooser_for(desk, prepared, reads=reads)
    return chosen_way(prepared, verdict, partitions, chooser)


def check_circuit(desk: Workbench, prepared: PreparedQuery, way: Way, stored: StoredQuery) -> None:
    """RecaptureNeededError where the stored state is not that of the circuit built now."""
    meta = StateMeta.read(stored.query, stored.state_meta)
    is_same = is_same_circuit(desk, prepared, stored) and meta.trees == trees_id(way.shapes)
    # What is read has no state but a filter: kept, it would be taken for empty.
    is_same &= {*meta.from_files} == {*way.sides_by(Strategy.FILES)}
    # Of a buffer the best are there: of more they would be taken for all.
    is_same &= meta.buffers == chosen_buffers(prepared.spec, way.compiled)
    is_same &= meta.provenance == way.provenance
    # Older builds kept rows of results that the engine does not compute exactly.
    is_same &= bool(stored.state_meta.get("answer")) == (way.answer is not None)
    if way.mode is stored.mode and is_same:
        return
    name = prepared.spec.name
    if stored.mode is Mode.RECAPTURE and is_same:
        raise RecaptureNeededError(
            f"Query `{name}` has no state that `maintain` could update: {meta.way}",
            code="not_incremental",
            hint="use policy `auto` to let `maintain` recapture it",
        )
    for pin in stored.pins:
        changed = _schema_change(desk, pin.table, pin.version)
        if changed is not None:
            # `SELECT *` is another list of columns now.
            raise changed
    raise RecaptureNeededError(
        f"The state of query `{name}` was written for a different circuit than this "
        "version of impctl builds",
        code="engine_changed",
        hint=f"run `impctl capture {desk.workload.file} --query {name}`",
    )


def _schema_change(
    desk: Workbench, table: TableName, version: TableVersion
) -> SchemaChangedError | None:
    """What happened to the columns since; None where nothing did, or the log tells no more."""
    try:
        before = desk.tables.snapshot(table, version)
    except ImpctlError:
        return None
    return schema_change(before, desk.tables.snapshot(table))


def is_same_circuit(desk: Workbench, prepared: PreparedQuery, stored: StoredQuery) -> bool:
    """Whether the query reads as the plan that the stored sketch was captured for.

    Where witnesses are enough depends on facts too, those of CHECKs that came and went among them.
    """
    if stored.state_meta.get("answer"):
        kept = desk.memory.answer(prepared.planned).kept
        circuit = with_answer(desk.memory.circuit(kept))
        return prepared.spec.answer and bool(stored.state_meta.get("circuit") == circuit)
    core = prepared.core
    if prepared.spec.lineage is not Lineage.ALL:
        try:
            verdict, partitions = restored_verdict(desk.tables, prepared, stored)
        except RecaptureNeededError:
            return False
        core = kept_plan(prepared, verdict, partitions).core
    return bool(stored.state_meta.get("circuit") == desk.memory.circuit(core))


def restored_verdict(
    tables: PinnedTables, prepared: PreparedQuery, stored: StoredQuery
) -> tuple[Verdict, Mapping[AccessId, RangePartition]]:
    """Verdict and partitions by access; RecaptureNeededError where it is no longer safe."""
    partitions = stored.partitions
    sketched = {sketch.access: sketch.attribute for sketch in stored.sketches}
    facts = [*constraint_facts(tables, prepared.scans), *map(fact_of, stored.assumptions)]
    query = prepared.planned
    verdict = check_safety(query, sketched, facts)
    if not verdict.safe:
        raise RecaptureNeededError(
            f"The stored sketch is no longer safe for the query: {verdict.reason}",
            code="no_longer_safe",
            hint="run `impctl capture`",
        )
    return verdict, partitions

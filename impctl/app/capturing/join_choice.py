"""How a query's joins are maintained: which sides are kept, and whether they are trees.

Law: at capture as the workload asks, else by the tables as they are then; ever after as the capture
chose, until the next one. Where the file leaves it open, joins whose constants move with the clock
stay with the index, which moves them, and a tree would be captured anew.
Out of scope: the circuit made of it (`app.capturing.chosen_way`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from impctl.app.capturing.fan_outs import PinnedFanOuts
from impctl.app.capturing.meta import StateMeta
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.workbench.memory_limit import largest_side, memory_of
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.settings import disk_of
from impctl.app.workbench.workbench import Workbench
from impctl.compile.buffers import FEWEST
from impctl.compile.flows import AsRecorded, BySize, Chooser, Strategy
from impctl.compile.jointree.cost import TreeChooser, TreesAsRecorded, TreesByFanOut
from impctl.engine.fixpoint.absorption import Absorbs, Ship
from impctl.errors import StateCorruptError
from impctl.sketch.sketch import Mode
from impctl.values import dataclass
from impctl.workload.models import JoinStrategy, StateKept

_SIDES = {
    JoinStrategy.AUTO: None,
    JoinStrategy.INDEX: Strategy.INDEX,
    JoinStrategy.FILES: Strategy.FILES,
    JoinStrategy.SPARK: Strategy.SPARK,
    JoinStrategy.SPARK_UNFILTERED: Strategy.SPARK,
    JoinStrategy.TREE: None,
}


_PARTS_OF_BUDGET = 20
"""A side that may take so much of all that may be kept is not built before it is known to pay."""


@dataclass(frozen=True, slots=True)
class JoinChooser:
    """Chooses for every join, and for the blocks of joins that could be trees."""

    sides: Chooser
    trees: TreeChooser
    buffers: Mapping[str, int] = field(default_factory=dict)
    """How much is kept of pieces with first rows or values of MIN and MAX that were bounded."""
    buffer: int | None = None
    """The same of all of them, where each is to be bounded."""
    absorbs: Absorbs | None = None
    """How recursion is kept by absorption; None for by ranks."""


def chooser_for(desk: Workbench, prepared: PreparedQuery, *, reads: bool = True) -> JoinChooser:
    """How a capture chooses: as the workload asks, else by the tables' sizes and fan-outs.

    Where it `reads` no rows, joins are not looked at, and the index is chosen. Under a budget what
    was chosen before holds; a first capture does not build sides that may take a good part of it,
    and what is worth it is kept again afterwards.
    """
    tables, disk = desk.tables, disk_of(desk.settings, desk.workload)
    fits = largest_side(memory_of(desk.settings, desk.workload))
    if prepared.moves_above:
        disk = fits = None  # what moves with the clock moves through what is kept
    largest = None if disk is None else disk // _PARTS_OF_BUDGET
    rows = {scan.table: tables.snapshot(scan.table).rows for scan in prepared.scans}
    asked = _asked(prepared)
    is_least = prepared.spec.state is StateKept.LEAST and not prepared.moves_above
    has_filter = _has_filter(prepared)
    sides = BySize(
        asked,
        rows.__getitem__,
        has_filter=has_filter,
        from_files=largest,
        fits=fits,
        is_least=is_least,
    )
    before = None if disk is None else _described_before(desk, prepared)
    return JoinChooser(
        sides if before is None or asked is not None else _as_before(before),
        _trees(tables, prepared, reads=reads),
        {} if before is None or prepared.spec.state is StateKept.KEEP else before.buffers,
        FEWEST if is_least else None,
        _absorbs(prepared),
    )


def _absorbs(prepared: PreparedQuery) -> Absorbs | None:
    """How the workload asks recursion to be kept."""
    asked = prepared.spec.provenance
    return None if asked is None else Absorbs(Ship(asked.ship), asked.nodes)


def _asked(prepared: PreparedQuery) -> Strategy | None:
    """What the workload says of all sides of a query; None where that is open."""
    match prepared.spec.state:
        case StateKept.KEEP:
            return Strategy.INDEX
        case StateKept.LEAST if not prepared.moves_above:
            return Strategy.FILES
    return _SIDES[prepared.spec.join]


def _described_before(desk: Workbench, prepared: PreparedQuery) -> StateMeta | None:
    """What is said of the state as it is kept now; None where there is none with such pieces."""
    store = desk.reading_store()
    stored = None if store is None else store.load(prepared.spec.name)
    if stored is None or stored.mode is not Mode.EXACT:
        return None
    try:
        meta = StateMeta.read(stored.query, stored.state_meta)
    except StateCorruptError:
        # A capture is what puts that right.
        return None
    return None if meta.trees else meta


def _as_before(meta: StateMeta) -> AsRecorded:
    """The sides as they are kept now."""
    reasons = meta.side_reasons
    return AsRecorded(meta.distant, from_files=meta.from_files, reasons=reasons, is_to_fill=True)


def _trees(tables: PinnedTables, prepared: PreparedQuery, *, reads: bool) -> TreeChooser:
    join = prepared.spec.join
    if join is not JoinStrategy.AUTO:
        return TreesAsRecorded(join is JoinStrategy.TREE, f"as set by `join: {join}`")
    if prepared.spec.state is StateKept.LEAST:
        return TreesAsRecorded(False, "`state: least` stores only what is needed")
    if prepared.moves_above:
        return TreesAsRecorded(False, "time-dependent constants need an index")
    if not reads:
        return TreesAsRecorded(False, "its fan-out is not known")
    weights = {scan.table: tables.snapshot(scan.table).likely_rows for scan in prepared.scans}
    return TreesByFanOut(PinnedFanOuts(tables), weights)


def chooser_of(prepared: PreparedQuery, meta: StateMeta) -> JoinChooser:
    """What the capture chose of the stored state."""
    sides = AsRecorded(meta.distant, _has_filter(prepared), meta.from_files, meta.side_reasons)
    is_tree = prepared.spec.join is JoinStrategy.TREE or bool(meta.trees)
    absorbs = _absorbs(prepared) if meta.provenance else None
    return JoinChooser(sides, TreesAsRecorded(is_tree), meta.buffers, absorbs=absorbs)


def _has_filter(prepared: PreparedQuery) -> bool:
    return prepared.spec.join is not JoinStrategy.SPARK_UNFILTERED

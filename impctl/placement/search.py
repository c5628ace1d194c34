"""What each operator can do with its state, and the best modes of all pieces under a budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from math import log1p
from operator import add
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from impctl.bench.quantity import number
from impctl.placement.graph import (
    CostNode,
    Demand,
    Graph,
    KindOfChange,
    PerKind,
    Piece,
    PieceMode,
    Work,
    own,
)
from impctl.types import TableName

if TYPE_CHECKING:
    from impctl.data.vector import Bools, Floats, Ints


# The one-time cost in milliseconds of changing a piece's mode, from the costs in its graph. To be
# kept, a side or grouping is read whole and ordered. To be read, the keys of a side go into a
# filter, at the assumed cost of ordering; of a grouping the group keys are listed. To be bounded,
# the best rows are listed.


def conversion_ms(graph: Graph) -> Mapping[str, Mapping[PieceMode, float]]:
    """Per side and grouping the milliseconds to bring it to each mode."""
    result: dict[str, Mapping[PieceMode, float]] = {}
    for node in graph.nodes:
        # A grouping has one piece, over all of its inputs.
        below = [[wire] for wire in node.inputs] if node.work is Work.JOIN else [node.inputs]
        for piece, wires in zip(node.pieces, below, strict=bool(node.pieces)):
            scans = set[int]().union(*(_scans(graph, wire) for wire in wires))
            read = sum(max(graph.nodes[scan].whole, default=0.0) for scan in scans)
            build = max(piece.build, default=0.0)
            listed = max(piece.stream, default=0.0)
            is_side = node.work is Work.JOIN
            others = (
                {PieceMode.READ: build}
                if is_side
                else {PieceMode.READ: listed, PieceMode.BOUNDED: listed}
            )
            result[piece.name] = {PieceMode.KEPT: read + build, **others}
    return result


def _scans(graph: Graph, wire: int) -> set[int]:
    result, waiting = set[int](), [wire]
    while waiting:
        at = waiting.pop()
        if graph.nodes[at].work is Work.SCAN:
            result.add(at)
        waiting += graph.nodes[at].inputs
    return result


# All combinations of modes of one operator, with costs and demands as arrays: those of `graph.own`
# for every combination, kind of change and demand, so that a demand is one selection. Combinations
# dominated by one with the same demands are dropped.

Asked = tuple[int, ...]  # The `Demand` on a flow for each kind of change


class NodeOption(Struct, frozen=True):
    """Modes of an operator's pieces: bytes, milliseconds a day, and the demands on its inputs."""

    modes: tuple[tuple[str, PieceMode], ...]
    bytes: int
    cost: float
    asks: tuple[Asked, ...]


class Options:
    def __init__(self, graph: Graph, at: int, *, asks_keys: bool = True) -> None:
        """`asks_keys`: whether some operator requests the rows of keys."""
        node = graph.nodes[at]
        kinds = range(len(graph.kinds))
        self._combinations = list(product(*(piece.modes for piece in node.pieces)))
        self._names = tuple(piece.name for piece in node.pieces)
        self._bytes = [
            sum(piece.sizes[mode] for piece, mode in zip(node.pieces, modes, strict=True))
            for modes in self._combinations
        ]

        self._every = np.arange(len(graph.kinds))
        active = [
            tuple(graph.active[wire][kind] for wire in node.inputs or (at,)) for kind in kinds
        ]
        self._found = []
        for modes in self._combinations:
            each = []
            for kind in kinds:
                least, most = (
                    own(node, active[kind], modes, kind, demand)
                    for demand in (Demand.DELTA, Demand.FULL)
                )
                # Nobody asks for keys where no piece is read from the flow below it.
                keys = own(node, active[kind], modes, kind, Demand.KEYS) if asks_keys else most
                each.append([least, keys, most])
            self._found.append(each)
        costs = [[[one.cost for one in kind] for kind in modes] for modes in self._found]
        shape = (len(costs), len(graph.kinds), len(Demand))
        rates = np.array([kind.rate for kind in graph.kinds], dtype=np.float64)
        self._costs: Floats = np.array(costs, dtype=np.float64).reshape(shape) * rates[:, None]
        self._asked: dict[Asked, list[NodeOption]] = {}

    def asked(self, demand: Asked) -> list[NodeOption]:
        """The undominated combinations for these demands."""
        if demand not in self._asked:
            self._asked[demand] = self._undominated(demand)
        return self._asked[demand]

    def _undominated(self, demand: Asked) -> list[NodeOption]:
        costs = self._costs[:, self._every, list(demand)].sum(axis=1)
        alike: dict[tuple[Asked, ...], list[int]] = {}
        for at, kinds in enumerate(self._found):
            asks = [kind[one].asks for kind, one in zip(kinds, demand, strict=True)]
            alike.setdefault(tuple(zip(*asks, strict=True)), []).append(at)
        result = []
        for demands, places in alike.items():
            best = float("inf")
            for at in sorted(places, key=lambda at: (self._bytes[at], costs[at])):
                if costs[at] < best:
                    best = float(costs[at])
                    modes = tuple(zip(self._names, self._combinations[at], strict=True))
                    result.append(NodeOption(modes, self._bytes[at], best, demands))
        return result


# Undominated points of bytes and cost: of two points the one with more bytes is cheaper. For every
# dropped point there is one with no more bytes and no more cost, or at most the thinning share
# more. Points refer to the points they were combined from instead of modes, so sums and unions of
# frontiers stay numbers until one point is chosen.

_AT_ONCE = 1 << 20  # Pairs of points compared in one array


class Part(Struct, frozen=True, eq=False):
    """Where points come from: modes chosen here, and points of up to two other frontiers."""

    modes: tuple[tuple[str, PieceMode], ...]
    left: Frontier | None = None
    right: Frontier | None = None


class Frontier(Struct, frozen=True, eq=False):
    """Points by rising `bytes` (int64) and falling `cost` (float64), both of shape (points,).
    `part` is the position of each in `parts`, `left` and `right` the points of that part's
    frontiers."""

    bytes: Ints
    cost: Floats
    part: Ints
    left: Ints
    right: Ints
    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return len(self.bytes)

    def modes(self, point: int) -> dict[str, PieceMode]:
        result: dict[str, PieceMode] = {}
        for name, mode in self._chosen(point):
            # Copies of one flow may differ where its choice was not made once: kept wins.
            if name not in result or mode is PieceMode.KEPT:
                result[name] = mode
        return result

    def _chosen(self, point: int) -> Iterator[tuple[str, PieceMode]]:
        waiting: list[tuple[Frontier, int]] = [(self, point)]
        while waiting:
            frontier, at = waiting.pop()
            part = frontier.parts[frontier.part[at]]
            yield from part.modes
            if part.left is not None:
                waiting.append((part.left, int(frontier.left[at])))
            if part.right is not None:
                waiting.append((part.right, int(frontier.right[at])))

    def best_within(self, budget: float) -> int:
        """The cheapest point with at most these bytes; the smallest if none has so few."""
        return max(0, int(np.searchsorted(self.bytes, budget, side="right")) - 1)


def single(
    modes: Sequence[tuple[str, PieceMode]] = (), size: int = 0, cost: float = 0.0
) -> Frontier:
    none = np.zeros(1, dtype=np.int64)
    sizes, costs = np.array([size], dtype=np.int64), np.array([cost], dtype=np.float64)
    return Frontier(sizes, costs, none, none, none, (Part(tuple(modes)),))


def of_choices(choices: Sequence[tuple[Mapping[str, PieceMode], int, float]]) -> Frontier:
    """The undominated ones of whole choices: modes, bytes, cost."""
    size = np.array([size for _, size, _ in choices], dtype=np.int64)
    cost = np.array([cost for _, _, cost in choices], dtype=np.float64)
    part = np.arange(len(choices), dtype=np.int64)
    parts = tuple(Part(tuple(modes.items())) for modes, _, _ in choices)
    return _undominated(size, cost, part, part, part, parts, 0.0)


def added(first: Frontier, second: Frontier, thin: float) -> Frontier:
    """Every point of the one combined with every point of the other."""
    if len(second) == 1 and not second.bytes[0] and not second.cost[0] and _is_bare(second):
        return first
    if len(first) == 1 and not first.bytes[0] and not first.cost[0] and _is_bare(first):
        return second
    parts = (Part((), first, second),)
    if min(len(first), len(second)) == 1:
        # What every point gains leaves none dominated.
        many = max(len(first), len(second))
        every, none = np.arange(many, dtype=np.int64), np.zeros(many, dtype=np.int64)
        left, right = (every, none) if len(second) == 1 else (none, every)
        return Frontier(
            first.bytes + second.bytes, first.cost + second.cost, none, left, right, parts
        )
    lot = max(1, _AT_ONCE // len(second))
    result = [
        _beside(first, second, start, start + lot, parts) for start in range(0, len(first), lot)
    ]
    size, cost, left, right = (np.concatenate(column) for column in zip(*result, strict=True))
    none = np.zeros(len(size), dtype=np.int64)
    return _undominated(size, cost, none, left, right, parts, thin)


def _beside(
    first: Frontier, second: Frontier, start: int, end: int, parts: tuple[Part, ...]
) -> tuple[Ints, Floats, Ints, Ints]:
    """Some points of the one combined with all of the other: bytes, cost, the point of each."""
    points = np.arange(start, min(end, len(first)), dtype=np.int64)
    size = (first.bytes[points, None] + second.bytes).ravel()
    cost = (first.cost[points, None] + second.cost).ravel()
    left = np.repeat(points, len(second))
    right = np.tile(np.arange(len(second), dtype=np.int64), len(points))
    none = np.zeros(len(size), dtype=np.int64)
    result = _undominated(size, cost, none, left, right, parts, 0.0)
    return result.bytes, result.cost, result.left, result.right


def united(
    options: Sequence[tuple[tuple[tuple[str, PieceMode], ...], int, float, Frontier]], thin: float
) -> Frontier:
    """The points of all options: modes chosen here with their bytes and cost, over a frontier."""
    if len(options) == 1:
        modes, more, dearer, below = options[0]
        if not modes and not more and not dearer:
            return below
    sizes, costs, parts, points, owners = [], [], [], [], []
    for index, (modes, more, dearer, below) in enumerate(options):
        sizes.append(below.bytes + more)
        costs.append(below.cost + dearer)
        parts.append(Part(modes, below))
        points.append(np.arange(len(below), dtype=np.int64))
        owners.append(np.full(len(below), index, dtype=np.int64))
    left = np.concatenate(points)
    part = np.concatenate(owners)
    size, cost = np.concatenate(sizes), np.concatenate(costs)
    if len(options) == 1:
        # What every point gains leaves none dominated.
        return Frontier(size, cost, part, left, left, tuple(parts))
    return _undominated(size, cost, part, left, left, tuple(parts), thin)


def _is_bare(frontier: Frontier) -> bool:
    part = frontier.parts[0]
    return not part.modes and part.left is None


def _undominated(
    size: Ints,
    cost: Floats,
    part: Ints,
    left: Ints,
    right: Ints,
    parts: tuple[Part, ...],
    thin: float,
) -> Frontier:
    order = np.argsort(size, kind="stable")
    sizes, costs = size[order], cost[order]
    least = np.minimum.accumulate(costs)
    is_better = np.ones(len(order), dtype=np.bool_)
    is_better[1:] = costs[1:] < least[:-1]
    order = order[is_better]
    sizes = sizes[is_better]
    # Of equal sizes each is cheaper than the one before it.
    is_last = np.ones(len(order), dtype=np.bool_)
    is_last[:-1] = sizes[1:] > sizes[:-1]
    order = order[is_last]
    if thin and len(order) > 2:
        order = order[_apart(cost[order], thin)]
    return Frontier(size[order], cost[order], part[order], left[order], right[order], parts)


def _apart(cost: Floats, thin: float) -> Bools:
    """The first of those whose falling costs lie within one step of `1 + thin`."""
    with np.errstate(divide="ignore"):
        steps = np.floor(np.log(cost) / log1p(thin))
    is_first = np.ones(len(cost), dtype=np.bool_)
    is_first[1:] = steps[1:] != steps[:-1]
    return is_first


# The true cost of a choice of modes, by walking the graph from its root. A flow with several
# readers is computed once, for all their demands. Queries evaluated together share their reads of
# the same tables in a run: the longest one is paid.

Modes = Mapping[str, PieceMode]  # The mode of each piece, by its name


class Cost(Struct, frozen=True):
    """Milliseconds per run of each kind of change: work, and reads by the tables read together."""

    work: tuple[float, ...]
    reads: tuple[Mapping[tuple[TableName, ...], float], ...]

    @property
    def per_kind(self) -> tuple[float, ...]:
        both = zip(self.work, self.reads, strict=True)
        return tuple(work + sum(reads.values()) for work, reads in both)


def evaluate(graph: Graph, modes: Modes) -> Cost:
    """What runs of each kind of change cost with every piece in its mode."""
    result = [_run(graph, modes, kind) for kind in range(len(graph.kinds))]
    return Cost(tuple(work for work, _ in result), tuple(reads for _, reads in result))


def per_day(graph: Graph, modes: Modes) -> float:
    return _day(graph, evaluate(graph, modes).per_kind)


def per_day_together(graphs: Sequence[Graph], modes: Sequence[Modes]) -> float:
    """Milliseconds a day of queries maintained in the same runs, which share their reads. All
    graphs must have the same kinds of change."""
    costs = [evaluate(graph, chosen) for graph, chosen in zip(graphs, modes, strict=True)]
    total = 0.0
    for index, kind in enumerate(graphs[0].kinds if graphs else ()):
        longest: dict[tuple[TableName, ...], float] = {}
        for cost in costs:
            for source, read in cost.reads[index].items():
                # What is read from no table is the query's own.
                shared = max if source else add
                longest[source] = shared(longest.get(source, 0.0), read)
        work = sum(cost.work[index] for cost in costs)
        total += kind.rate * (work + sum(longest.values()))
    return total


def _run(
    graph: Graph, modes: Modes, kind: int
) -> tuple[float, Mapping[tuple[TableName, ...], float]]:
    """Work and reads of one run, without what queries share."""
    demands = [Demand.DELTA] * len(graph.nodes)
    work = 0.0
    reads: dict[tuple[TableName, ...], float] = {}
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        below = node.inputs or (index,)
        active = [graph.active[wire][kind] for wire in below]
        chosen = [modes[piece.name] for piece in node.pieces]
        result = own(node, active, chosen, kind, demands[index])
        work += result.work
        for source, read in result.reads:
            reads[source] = reads.get(source, 0.0) + read
        if node.work is not Work.SCAN:
            for wire, demand in zip(node.inputs, result.asks, strict=True):
                demands[wire] = max(demands[wire], demand)
    return work, reads


# A heuristic for graphs with too many shared flows. It starts from the choices that are best if
# every reader had a copy of a shared flow (kept wins where copies differ), evaluates them truly,
# and changes one or two modes at a time while that helps within the bytes. The reported cost is
# true; its distance from the best is unknown.

_STARTS = 24  # Choices that are improved, of all, evenly over the frontier
_MOST_ROUNDS = 40
_MOST_PAIRS = 400


def improved(graph: Graph, copied: Frontier) -> Frontier:
    """The frontier of choices that no small change improves."""
    positions = np.unique(np.linspace(0, len(copied) - 1, _STARTS).astype(np.int64))
    starts = [copied.modes(int(position)) for position in positions]
    starts.append({p.name: min(p.sizes, key=p.sizes.__getitem__) for p in graph.pieces})
    starts.append({piece.name: piece.modes[0] for piece in graph.pieces})
    result: list[tuple[dict[str, PieceMode], int, float]] = []
    for modes in starts:
        budget = graph.bytes_of(modes)
        cost = per_day(graph, modes)
        for _ in range(_MOST_ROUNDS):
            better = _better(graph, modes, budget, cost)
            if better is None:
                break
            modes, cost = better
        result.append((modes, graph.bytes_of(modes), cost))
    return of_choices(result)


def _better(
    graph: Graph, modes: dict[str, PieceMode], budget: int, cost: float
) -> tuple[dict[str, PieceMode], float] | None:
    """The cheapest choice within the bytes that differs in one mode, or in two."""
    for changes in (_with_one_change(graph, modes), _with_two_changes(graph, modes)):
        best = None
        for changed in changes:
            if graph.bytes_of(changed) > budget:
                continue
            result = per_day(graph, changed)
            # Sums of the same costs in another order are no improvement.
            if result < cost * (1 - 1e-12) - 1e-12:
                best, cost = changed, result
        if best is not None:
            return best, cost
    return None


def _with_one_change(graph: Graph, modes: dict[str, PieceMode]) -> Iterator[dict[str, PieceMode]]:
    for piece in graph.pieces:
        for mode in piece.modes:
            if mode is not modes[piece.name]:
                yield {**modes, piece.name: mode}


def _with_two_changes(graph: Graph, modes: dict[str, PieceMode]) -> Iterator[dict[str, PieceMode]]:
    left = _MOST_PAIRS
    for first, second in combinations(graph.pieces, 2):
        for first_mode in first.modes:
            for second_mode in second.modes:
                if first_mode is modes[first.name] or second_mode is modes[second.name] or not left:
                    continue
                left -= 1
                yield {**modes, first.name: first_mode, second.name: second_mode}


# The best modes of all pieces of one query, for every budget at once. f(v, Z) is the frontier of
# the operators below v for a demand Z on v per kind of change. For each combination of modes of v's
# pieces, Z alone determines its cost and demands, so the frontiers of the inputs are added; their
# union over the combinations is f(v, Z). *Exact* for trees. A flow with several readers is paid
# once, for an assumed demand that no reader may exceed; the minimum over all assumptions is exact
# too, since the true demand is among them. With too many assumptions, `approximate` is used
# instead, and reported. Thinned points cost at most `thin` more for every operator with a choice or
# two inputs on the way to the root; 0 is exact.

THIN = 0.001  # The relative cost by which points must differ to be kept apart
MOST_ASSUMPTIONS = 4096  # Demands on shared flows that are tried, in all
_MOST_POINT_PAIRS = 1 << 16  # Pairs of demands of two readers that are tried

Assumed = tuple[tuple[int, Asked], ...]  # A demand for each of some shared flows


class RankedChoices(Struct, frozen=True, eq=False):
    """Undominated choices for one query, and whether no better one exists."""

    frontier: Frontier
    is_exact: bool


def choices_of(
    graph: Graph, *, thin: float = THIN, most_assumptions: int = MOST_ASSUMPTIONS
) -> RankedChoices:
    """All choices worth making for the query, by rising bytes and falling cost a day."""
    asks_keys = any(piece.reads_below for piece in graph.pieces)
    options = [Options(graph, index, asks_keys=asks_keys) for index in range(len(graph.nodes))]
    if not graph.shared:
        return RankedChoices(_FrontierSearch(graph, options, thin, {}).root(), is_exact=True)
    possible = _possible(graph, options, most_assumptions)
    if possible is None:
        copied = _FrontierSearch(graph, options, thin, {}, are_copied=True).root()
        return RankedChoices(improved(graph, copied), is_exact=False)
    return RankedChoices(_FrontierSearch(graph, options, thin, possible).least(), is_exact=True)


class _FrontierSearch(Struct, dict=True):
    """Frontiers of one graph, each computed once. `possible` has the demands to try for each shared
    flow; with `are_copied`, each reader pays for it."""

    graph: Graph
    options: Sequence[Options]
    thin: float
    possible: dict[int, tuple[Asked, ...]]
    are_copied: bool = False

    def __post_init__(self) -> None:
        self._shared = () if self.are_copied else self.graph.shared
        self._below = _shared_below(self.graph, self._shared)
        self._found: dict[tuple[int, Asked, Assumed], Frontier | None] = {}
        self._sums: dict[tuple[tuple[int, ...], tuple[Asked, ...], Assumed], Frontier | None] = {}
        self._nothing = single()

    def root(self) -> Frontier:
        """The frontier if nothing is shared."""
        result = self._of(len(self.graph.nodes) - 1, _changes(self.graph), {})
        assert result is not None, "without assumptions everything may be asked"
        return result

    def least(self) -> Frontier:
        top = len(self.graph.nodes) - 1
        options = []
        for assumed in _every(self.graph, self.possible):
            frontier = self._of(top, _changes(self.graph), assumed)
            for wire, demand in assumed.items():
                below = None if frontier is None else self._of(wire, demand, assumed)
                if frontier is None or below is None:
                    frontier = None
                    break
                frontier = added(frontier, below, self.thin)
            if frontier is not None:
                options.append(((), 0, 0.0, frontier))
        return united(options, self.thin)

    def _of(self, wire: int, demand: Asked, assumed: dict[int, Asked]) -> Frontier | None:
        """f(v, Z); None if it demands more of a shared flow than is assumed."""
        key = (wire, demand, self._assumed(wire, assumed))
        if key not in self._found:
            result = [
                (option.modes, option.bytes, option.cost, below)
                for option in self.options[wire].asked(demand)
                if (below := self._inputs(wire, option, assumed)) is not None
            ]
            self._found[key] = united(result, self.thin) if result else None
        return self._found[key]

    def _inputs(self, wire: int, option: NodeOption, assumed: dict[int, Asked]) -> Frontier | None:
        """The inputs of a node combined, under their demands."""
        wires = self.graph.nodes[wire].inputs
        key = (wires, option.asks, self._assumed(wire, assumed))
        if key not in self._sums:
            self._sums[key] = self._summed(wires, option.asks, assumed)
        return self._sums[key]

    def _summed(
        self, wires: Sequence[int], asks: Sequence[Asked], assumed: dict[int, Asked]
    ) -> Frontier | None:
        result = self._nothing
        for wire, ask in zip(wires, asks, strict=True):
            if wire in self._shared:
                if any(demand > limit for demand, limit in zip(ask, assumed[wire], strict=True)):
                    return None
                continue
            below = self._of(wire, ask, assumed)
            if below is None:
                return None
            result = added(result, below, self.thin)
        return result

    def _assumed(self, wire: int, assumed: dict[int, Asked]) -> Assumed:
        """What is assumed of the flows that the operators below a node read."""
        return tuple((wire, assumed[wire]) for wire in self._below[wire])


def _changes(graph: Graph) -> Asked:
    return (int(Demand.DELTA),) * len(graph.kinds)


def _shared_below(graph: Graph, shared: Sequence[int]) -> list[tuple[int, ...]]:
    """Per node the shared flows that are read below it, without looking into these."""
    result: list[tuple[int, ...]] = []
    for node in graph.nodes:
        below: set[int] = set()
        for wire in node.inputs:
            below.update([wire] if wire in shared else result[wire])
        result.append(tuple(sorted(below)))
    return result


def _every(graph: Graph, possible: dict[int, tuple[Asked, ...]]) -> Iterator[dict[int, Asked]]:
    """Every assumption, in which flows that only assumed ones decide get the greatest demand."""
    above = {wire: _decided_by(graph, wire) for wire in possible}
    # Flows nearer the root first: they decide the demands below.
    free = {wire: possible[wire] for wire in possible if above[wire] is None}
    for chosen in product(*free.values()):
        assumed = dict(zip(free, chosen, strict=True))
        for wire in sorted(possible, reverse=True):
            readers = above[wire]
            if readers is not None:
                demands = [_changes(graph), *(assumed[reader] for reader in readers)]
                assumed[wire] = tuple(map(max, *demands)) if readers else demands[0]
        yield assumed


def _decided_by(graph: Graph, wire: int) -> tuple[int, ...] | None:
    """The shared flows whose demands pass unchanged to a shared one; None if others do."""
    result: list[int] = []
    waiting = [wire]
    while waiting:
        below = waiting.pop()
        for reader, node in enumerate(graph.nodes):
            if below not in node.inputs:
                continue
            if node.work is not Work.ROWS:
                return None
            if reader in graph.shared:
                result.append(reader)
            else:
                waiting.append(reader)
    return tuple(result)


def _possible(
    graph: Graph, options: Sequence[Options], most: int
) -> dict[int, tuple[Asked, ...]] | None:
    """The possible demands on each shared flow; None if there are too many to try. The joint demand
    of readers is the greatest of theirs, in every combination."""
    demands: list[set[Asked]] = [{_changes(graph)} for _ in graph.nodes]
    is_first = [True] * len(graph.nodes)
    result: dict[int, tuple[Asked, ...]] = {}
    total = 1
    for index in reversed(range(len(graph.nodes))):
        if index in graph.shared:
            result[index] = tuple(sorted(demands[index]))
            total *= len(result[index]) if _decided_by(graph, index) is None else 1
        if total > most or len(demands[index]) > most:
            return None
        all_asks = [o.asks for demand in demands[index] for o in options[index].asked(demand)]
        for position, wire in enumerate(graph.nodes[index].inputs):
            asks = {asks[position] for asks in all_asks}
            if not is_first[wire]:
                if len(demands[wire]) * len(asks) > _MOST_POINT_PAIRS:
                    return None
                asks = {tuple(map(max, a, b)) for a, b in product(demands[wire], asks)}
            demands[wire], is_first[wire] = asks, False
    return result


# One budget for several queries: their frontiers combined on a grid of a thousand cells. Each cell
# holds the cheapest choice for the first queries within so many bytes, with its exact bytes, so the
# result is never dearer than with sizes rounded up to cells. It fits the budget if anything does.
# Queries share no pieces.

_CELLS = 1000


def divided(frontiers: Sequence[Frontier], budget: int) -> list[int]:
    """A point of each frontier, together within the budget and as cheap as the search finds. If
    even the smallest points have more bytes, these."""
    if len(frontiers) < 2:
        return [frontier.best_within(budget) for frontier in frontiers]
    points = [0] * len(frontiers)
    if not budget or sum(int(frontier.bytes[0]) for frontier in frontiers) > budget:
        return points
    by_grid = _on_grid(frontiers, budget)
    return _filled_up(frontiers, points if by_grid is None else by_grid, budget)


def _on_grid(frontiers: Sequence[Frontier], budget: int) -> list[int] | None:
    size = np.zeros(_CELLS + 1, dtype=np.int64)
    cost = np.full(_CELLS + 1, np.inf)
    cost[0] = 0.0
    steps: list[tuple[Ints, Ints]] = []
    for frontier in frontiers:
        size, cost, point, before = _with(frontier, size, cost, budget)
        steps.append((point, before))
    if not np.isfinite(cost).any():
        # Rounding left nothing, which cannot be but for a budget of a few bytes.
        return None
    cell = int(np.argmin(cost))
    result = []
    for point, before in reversed(steps):
        result.append(int(point[cell]))
        cell = int(before[cell])
    return result[::-1]


def _with(
    frontier: Frontier, size: Ints, cost: Floats, budget: int
) -> tuple[Ints, Floats, Ints, Ints]:
    """The grid with one more query: bytes, cost, its point, and the cell before."""
    more, dearer = np.full(_CELLS + 1, 0, dtype=np.int64), np.full(_CELLS + 1, np.inf)
    point, before = np.zeros(_CELLS + 1, np.int64), np.zeros(_CELLS + 1, np.int64)
    filled = np.flatnonzero(np.isfinite(cost))
    for at in _one_a_cell(frontier, budget):
        total = size[filled] + frontier.bytes[at]
        cells = _cells(total, budget)
        result = cost[filled] + frontier.cost[at]
        # Bytes of neighbouring cells may come to lie in one cell, those of every other one do not.
        for start in (0, 1):
            lot = np.arange(start, len(filled), 2)
            lot = lot[cells[lot] <= _CELLS]
            lot = lot[result[lot] < dearer[cells[lot]]]
            to = cells[lot]
            more[to], dearer[to], point[to], before[to] = total[lot], result[lot], at, filled[lot]
    return more, dearer, point, before


def _one_a_cell(frontier: Frontier, budget: int) -> Ints:
    """Points of a frontier within the budget, the cheapest of each cell, and the smallest."""
    cells = _cells(frontier.bytes, budget)
    is_last: Bools = np.ones(len(frontier), dtype=np.bool_)
    is_last[:-1] = cells[1:] > cells[:-1]
    is_last[0] = True
    return np.flatnonzero(is_last & (cells <= _CELLS))


def _cells(size: Ints, budget: int) -> Ints:
    """The cell that ends at or after so many bytes."""
    result: Ints = -(-size * _CELLS // budget)
    return result


def _filled_up(frontiers: Sequence[Frontier], points: list[int], budget: int) -> list[int]:
    """Give the rest of the budget to the query it helps most, as long as it helps any."""
    used = (frontier.bytes[point] for frontier, point in zip(frontiers, points, strict=True))
    left = budget - sum(map(int, used))
    while True:
        gains = []
        for query, (frontier, index) in enumerate(zip(frontiers, points, strict=True)):
            better = frontier.best_within(int(frontier.bytes[index]) + left)
            gains.append((float(frontier.cost[index] - frontier.cost[better]), query, better))
        gain, query, better = max(gains, key=lambda one: one[0])
        if gain <= 0:
            return points
        left -= int(frontiers[query].bytes[better] - frontiers[query].bytes[points[query]])
        points[query] = better


# The choice of state: queries and a budget in, modes and reasons out, as a pure function. The
# minimised sum leaves out that queries share reads of the same tables; so the choice is repeated
# with each read divided by the number of queries that chose it, and the truly cheaper of the two is
# returned.

_Sharers = Mapping[tuple[tuple[TableName, ...], int], int]
"""How many queries read the same tables in runs of a kind of change."""


class PieceChoice(Struct, frozen=True):
    """The choice for one piece: bytes now and if kept, and why."""

    name: str
    mode: PieceMode
    bytes: int
    kept_bytes: int | None  # None if it may not be kept
    reason: str


class QueryChoice(Struct, frozen=True):
    """The choice for one query: its pieces, bytes, and milliseconds a day, without shared reads.
    `is_exact`: all its choices were considered, so none of as many bytes is cheaper except for
    thinned points."""

    pieces: Mapping[str, PieceChoice]
    bytes: int
    ms_per_day: float
    is_exact: bool

    @property
    def modes(self) -> Modes:
        return {name: piece.mode for name, piece in self.pieces.items()}


class StateChoice(Struct, frozen=True):
    """The choice for all queries: bytes, and the expected milliseconds a day of maintaining. If it
    `exceeds` the budget, nothing fits: `least` are the fewest bytes needed. A kept byte counted as
    `per_byte` milliseconds a day."""

    queries: Mapping[str, QueryChoice]
    bytes: int
    ms_per_day: float
    exceeds: bool
    least: int = 0
    per_byte: float = 0.0


def choose(
    queries: Mapping[str, Graph],
    budget_bytes: int | None,
    *,
    thin: float = THIN,
    urgency: Sequence[float] = (),
    per_byte: float = 0.0,
) -> StateChoice:
    """Choose the modes of all pieces of all queries within a budget of bytes; None is unlimited,
    and then a kept byte may count as `per_byte` milliseconds a day. An `urgency` multiplies the
    rate of each kind of change for the choice, not in the reported cost. ValueError if the budget
    is below zero, or if the graphs have different kinds of change."""
    given = list(queries.values())
    if len({graph.kinds for graph in given}) > 1:
        raise ValueError("queries are expected to change in different ways")
    if budget_bytes is not None and budget_bytes < 0:
        raise ValueError("a budget below zero")
    graphs = [_urged(graph, urgency) for graph in given] if urgency else given
    result = [choices_of(graph, thin=thin) for graph in graphs]
    modes = _within(graphs, result, budget_bytes, per_byte)
    repriced = _repriced(graphs, modes)
    if repriced is not None:
        again = [choices_of(graph, thin=thin) for graph in repriced]
        other = _within(graphs, again, budget_bytes, per_byte)
        modes = min(modes, other, key=lambda one: _rank(graphs, one, budget_bytes, per_byte))
    exact = [choices.is_exact for choices in result]
    choice = explained(queries, dict(zip(queries, modes, strict=True)), budget_bytes, exact)
    least = sum(int(choices.frontier.bytes[0]) for choices in result)
    return replace(choice, least=least, per_byte=per_byte)


def explained(
    queries: Mapping[str, Graph],
    modes: Mapping[str, Modes],
    budget_bytes: int | None,
    exact: Sequence[bool],
) -> StateChoice:
    """What these modes of all pieces cost, and why each has its mode; `exact` is by query."""
    chosen = {
        name: _query_choice(graph, modes[name], is_exact=is_exact)
        for (name, graph), is_exact in zip(queries.items(), exact, strict=True)
    }
    total = sum(one.bytes for one in chosen.values())
    exceeds = budget_bytes is not None and total > budget_bytes
    graphs, every = list(queries.values()), [modes[name] for name in queries]
    return StateChoice(chosen, total, per_day_together(graphs, every), exceeds)


def _urged(graph: Graph, urgency: Sequence[float]) -> Graph:
    kinds = tuple(
        replace(kind, rate=kind.rate * times)
        for kind, times in zip(graph.kinds, urgency, strict=True)
    )
    return Graph(graph.nodes, kinds, graph.runs)


def _within(
    graphs: Sequence[Graph], choices: Sequence[RankedChoices], budget: int | None, per_byte: float
) -> list[Modes]:
    frontiers = [choice.frontier for choice in choices]
    if not frontiers:
        return []
    if per_byte:
        return [
            frontier.modes(int((frontier.cost + per_byte * frontier.bytes).argmin()))
            for frontier in frontiers
        ]
    most = sum(int(frontier.bytes[-1]) for frontier in frontiers)
    points = divided(frontiers, most if budget is None else min(budget, most))
    return [frontier.modes(point) for frontier, point in zip(frontiers, points, strict=True)]


def _rank(
    graphs: Sequence[Graph], modes: list[Modes], budget: int | None, per_byte: float
) -> tuple[int, float]:
    """Bytes over the budget first, then cost."""
    total = sum(graph.bytes_of(mode) for graph, mode in zip(graphs, modes, strict=True))
    over = 0 if budget is None else max(0, total - budget)
    return over, per_day_together(graphs, modes) + per_byte * total


def _repriced(graphs: Sequence[Graph], modes: Sequence[Modes]) -> list[Graph] | None:
    """The graphs with reads divided among those that made them; None if none is shared."""
    count: dict[tuple[tuple[TableName, ...], int], int] = {}
    for graph, chosen in zip(graphs, modes, strict=True):
        for kind, reads in enumerate(evaluate(graph, chosen).reads):
            for source, cost in reads.items():
                if source and cost > 0:
                    count[source, kind] = count.get((source, kind), 0) + 1
    if all(number < 2 for number in count.values()):
        return None
    return [
        Graph(tuple(_shared_reads(node, count) for node in graph.nodes), graph.kinds, graph.runs)
        for graph in graphs
    ]


def _shared_reads(node: CostNode, count: _Sharers) -> CostNode:
    if node.work is Work.SCAN:
        source = (node.table,)
        keys, whole = (_divided(costs, source, count) for costs in (node.keys, node.whole))
        return replace(node, keys=keys, whole=whole)
    pieces = (
        piece
        if piece.reads_below or not piece.source
        else replace(piece, read=_divided(piece.read, piece.source, count))
        for piece in node.pieces
    )
    return replace(node, pieces=tuple(pieces))


def _divided(costs: PerKind, source: tuple[TableName, ...], count: _Sharers) -> PerKind:
    return tuple(cost / count.get((source, kind), 1) for kind, cost in enumerate(costs))


def _query_choice(graph: Graph, modes: Modes, *, is_exact: bool) -> QueryChoice:
    costs = evaluate(graph, modes).per_kind
    pieces = {}
    for piece in graph.pieces:
        mode = modes[piece.name]
        reason = _reason(graph, modes, costs, piece)
        kept = piece.sizes.get(PieceMode.KEPT)
        pieces[piece.name] = PieceChoice(piece.name, mode, piece.sizes[mode], kept, reason)
    return QueryChoice(pieces, graph.bytes_of(modes), _day(graph, costs), is_exact)


def _reason(graph: Graph, modes: Modes, own_costs: Sequence[float], piece: Piece) -> str:
    """Why a piece has its mode: what the next best, or keeping it, would change."""
    mode = modes[piece.name]
    if len(piece.modes) == 1:
        return "nothing can replace it" if mode is PieceMode.KEPT else "requested"
    if mode is PieceMode.KEPT:
        others = [other for other in piece.modes if other is not PieceMode.KEPT]
        costs = {other: evaluate(graph, {**modes, piece.name: other}) for other in others}
        best = min(others, key=lambda other: _day(graph, costs[other].per_kind))
        when = f"if it is {piece.word(best)}"
        return _difference(graph, costs[best].per_kind, own_costs, when, "costs nothing more")
    if PieceMode.KEPT not in piece.modes:
        return "it cannot be kept"
    kept = evaluate(graph, {**modes, piece.name: PieceMode.KEPT}).per_kind
    nothing = "no change exhausts it" if mode is PieceMode.BOUNDED else "no change needs it"
    return _difference(graph, own_costs, kept, f"because it is {piece.word(mode)}", nothing)


def _day(graph: Graph, costs: Sequence[float]) -> float:
    return sum(kind.rate * cost for kind, cost in zip(graph.kinds, costs, strict=True))


def _difference(
    graph: Graph, dear: Sequence[float], cheap: Sequence[float], when: str, nothing: str
) -> str:
    """The kind of change with the largest difference in cost, and what each run adds."""
    daily = [kind.rate * (d - c) for kind, d, c in zip(graph.kinds, dear, cheap, strict=True)]
    index = max(range(len(daily)), key=daily.__getitem__, default=None)
    if index is None or daily[index] <= 0:
        return nothing
    name, more = _named(graph.kinds[index]), dear[index] - cheap[index]
    note = f" (from {graph.runs[index]} runs)" if graph.runs and graph.runs[index] else ""
    return f"{name}, and each change takes {number(more)} ms more {when}{note}"


def _named(kind: KindOfChange) -> str:
    tables = ", ".join(sorted(kind.tables))
    verb = "changes" if len(kind.tables) == 1 else "change"
    if kind.rate == 1:
        return f"{tables} {verb} once a day"
    if kind.rate > 1:
        return f"{tables} {verb} {number(kind.rate)} times a day"
    return f"{tables} {verb} once every {number(1 / kind.rate)} days"

"""What runs took is what their kind of change is estimated to take, operator by operator."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from impctl.placement.graph import Demand, Graph, KindOfChange, Mode, Node, Piece, Work, own
from impctl.placement.search import evaluate, priced
from impctl.service.budget.costs import FEWEST, learned_of
from impctl.service.context import open_workbench
from impctl.service.schedule.due import CommitLog, pending_of
from impctl.service.settings import Settings
from impctl.store.records import RunCost, RunKind, RunParts, SideRead
from impctl.store.store import Store
from tests.behaviour.typed_joins import QUERIES, change, write_workload
from tests.circuits.keeping.drawn import tree
from tests.support.kept_workload import stored
from tests.support.random_cases import random_seeds
from tests.support.run_cli import Cli

TABLES = tuple(f"t{number}" for number in range(5))


class World:
    """A graph, modes its pieces have, and what runs of each kind truly take."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        drawn = tree(self.random)
        # Of the two modes that there are today; scans before operators, as in circuits.
        nodes = tuple(_plain(node) for node in drawn.nodes)
        order = sorted(range(len(nodes)), key=lambda at: bool(nodes[at].inputs))
        moved = {old: new for new, old in enumerate(order)}
        self.graph = Graph(
            tuple(
                replace(nodes[old], inputs=tuple(moved[wire] for wire in nodes[old].inputs))
                for old in order
            ),
            drawn.kinds,
        )
        modes = (Mode.KEPT, Mode.READ)
        self.modes = {piece.name: self.random.choice(modes) for piece in self.graph.pieces}
        kinds = range(len(self.graph.kinds))
        self.rows = [self.random.uniform(1, 1e4) for _ in kinds]
        self.beside = [10 ** self.random.uniform(-2, 3) for _ in kinds]
        self.times = {
            (at, kind): 10 ** self.random.uniform(-1.2, 1.2)
            for at in range(len(self.graph.nodes))
            for kind in kinds
        }
        self.read_ms = {name: 10 ** self.random.uniform(-1, 3) for name in self.modes}

    def work(self, at: int, kind: int) -> float:
        """What the node truly takes in a run of as many rows as are expected."""
        node = self.graph.nodes[at]
        active = [self.graph.active[wire][kind] for wire in node.inputs]
        modes = [self.modes[piece.name] for piece in node.pieces]
        return own(node, active, modes, kind, Demand.DELTA).work * self.times[at, kind]

    def run(self, kind: int, *, asks: bool = True) -> RunCost:
        """A run of some other number of rows; with `asks` every side that is read has been."""
        share = self.random.uniform(0.2, 5)
        reads = tuple(
            SideRead(name, 3, 1, 7, self.read_ms[name]) if asks else SideRead(name)
            for name, mode in self.modes.items()
            if mode is Mode.READ
        )
        took = {one.side: one.ms for one in reads}
        operators = []
        for at, node in enumerate(self.graph.nodes):
            if node.inputs:
                lies = sum(took.get(piece.name, 0.0) for piece in node.pieces)
                operators.append(self.work(at, kind) * (0.3 + 0.7 * share) + lies)
        elapsed = sum(operators) + self.beside[kind] * (0.5 + 0.5 * share)
        tables = tuple(sorted(self.graph.kinds[kind].tables))
        rows = round(self.rows[kind] * share)
        self.rows[kind] = self.rows[kind] if rows else 0.0
        parts = RunParts(tuple(operators), reads)
        # What a line is through is whole rows; so small a part of them is not to matter.
        return RunCost(RunKind.MAINTAIN, rows, 0, elapsed, moved=tables, parts=parts)

    def learned(self, costs: Sequence[RunCost]) -> Graph:
        told = learned_of(self.graph, TABLES, self.modes, costs, self.rows)
        return priced(self.graph, told)


def _plain(node: Node) -> Node:
    pieces = tuple(
        replace(piece, sizes={Mode.KEPT: 9, Mode.READ: 1}, reads_below=False)
        for piece in node.pieces
    )
    return replace(node, pieces=pieces)


def alone(world: World) -> list[int]:
    """Kinds of change that reach the root, and that no other kind has the tables of."""
    tables = [kind.tables for kind in world.graph.kinds]
    reach = world.graph.active[-1]
    return [at for at, one in enumerate(tables) if tables.count(one) == 1 and reach[at]]


@random_seeds(10, 35, 200)
def test_an_estimate_is_what_runs_of_its_kind_took(seed: int) -> None:
    world = World(seed)
    world.rows = [1e6 for _ in world.rows]
    kinds = alone(world)
    costs = [world.run(kind) for kind in kinds for _ in range(FEWEST)]
    learned = world.learned(costs)
    for kind in kinds:
        expected = world.beside[kind]
        for at, node in enumerate(world.graph.nodes):
            if not node.inputs:
                continue
            expected += world.work(at, kind)
            active = [world.graph.active[wire][kind] for wire in node.inputs]
            for place, piece in enumerate(node.pieces):
                is_asked = active[0] if len(active) == 1 else active[1 - place]
                if world.modes[piece.name] is not Mode.READ or not is_asked:
                    continue
                thought = piece.hit[kind] if piece.hit else 1.0
                hit = (FEWEST + thought) / (FEWEST + 1)
                expected += hit * world.read_ms[piece.name]
        assert evaluate(learned, world.modes).per_kind[kind] == pytest.approx(expected, rel=1e-3)
        assert learned.runs[kind] == FEWEST


@random_seeds(4, 17, 30)
def test_too_few_runs_and_runs_over_other_tables_tell_nothing(seed: int) -> None:
    world = World(seed)
    runs = [world.run(kind) for kind in range(len(world.graph.kinds))]
    other = [replace(one, moved=("elsewhere",)) for one in runs * FEWEST]
    by_spark = [replace(one, spark=True, parts=None) for one in runs * FEWEST]
    old = [replace(one, moved=()) for one in runs * FEWEST]
    again = [replace(one, kind=RunKind.RECAPTURE) for one in runs * FEWEST]
    for told in (runs[:1] * (FEWEST - 1), by_spark, again):
        learned = world.learned(told)
        assert learned.nodes == world.learned([]).nodes
        assert not any(learned.runs)
    for told in (other, old):
        # A read of a side is the same read, whatever asked it; its chance is not.
        for before, after in zip(world.graph.pieces, world.learned(told).pieces, strict=True):
            assert (after.hit, after.probe, after.upkeep) == (
                before.hit,
                before.probe,
                before.upkeep,
            )


@random_seeds(8, 34, 60)
def test_runs_with_a_side_read_tell_nothing_of_keeping_it(seed: int) -> None:
    """After a conversion the operator's time was that of other modes; its neighbours' was not."""
    world = World(seed)
    kinds = alone(world)
    if not kinds or not world.graph.pieces:
        return
    costs = [world.run(kind) for kind in kinds for _ in range(FEWEST)]
    turned = world.random.choice(world.graph.pieces).name
    before = world.modes[turned]
    world.modes[turned] = Mode.KEPT if before is Mode.READ else Mode.READ
    (at,) = (
        at
        for at, node in enumerate(world.graph.nodes)
        if turned in [piece.name for piece in node.pieces]
    )
    told = learned_of(world.graph, TABLES, world.modes, costs, world.rows)
    for kind in kinds:
        known = [
            world.times[place, kind]
            for place, node in enumerate(world.graph.nodes)
            if node.inputs and place != at and world.work(place, kind) > 0
        ]
        low, high = (min(known), max(known)) if known else (1.0, 1.0)
        # As its neighbours', taken together.
        assert min(low, high) * 0.99 <= told.times[at][kind] <= high * 1.01


def test_a_read_that_seldom_comes_keeps_some_of_its_chance() -> None:
    world = next(w for w in map(World, range(500)) if _has_certain_read(w))
    kind, name = _has_certain_read(world)[0]
    for count in range(FEWEST, 9):
        learned = world.learned([world.run(kind, asks=False) for _ in range(count)])
        (piece,) = (one for one in learned.pieces if one.name == name)
        assert piece.hit[kind] == pytest.approx(1 / (count + 1))


def _bounded_graph() -> Graph:
    piece = Piece(
        name="p",
        sizes={Mode.KEPT: 9, Mode.READ: 1, Mode.BOUNDED: 2},
        upkeep=(1.0, 1.0),
        refill=(5.0, 0.0),
    )
    kinds = (KindOfChange(frozenset({"t"}), 1.0), KindOfChange(frozenset({"u"}), 1.0))
    scans = (Node(work=Work.SCAN, table="t"), Node(work=Work.SCAN, table="u"))
    union = Node(work=Work.ROWS, inputs=(0, 1))
    return Graph((*scans, union, Node(work=Work.KEYED, inputs=(2,), pieces=(piece,))), kinds)


def _bounded_runs(runs: int, filled: int) -> list[RunCost]:
    """Runs of which the first so many filled buffers again."""
    result = []
    for number in range(runs):
        read = SideRead("p.buffer", 2, 2, 50, 30.0) if number < filled else SideRead("p.buffer")
        parts = RunParts((0.0, 2.0 + read.ms), (read,))
        ms = sum(parts.times)
        result.append(RunCost(RunKind.MAINTAIN, 7, 0, ms, moved=("t",), parts=parts))
    return result


def test_buffers_that_are_filled_again_cost_what_that_took_as_often_as_it_came() -> None:
    graph, rows = _bounded_graph(), [7.0, 7.0]
    bounded = {"p": Mode.BOUNDED}
    costs = _bounded_runs(5, 3)
    told = learned_of(graph, ("t", "u"), bounded, costs, rows)
    (piece,) = priced(graph, told).pieces
    # What was thought of it counts as one run more.
    assert piece.refill == pytest.approx(((3 + 1) / (5 + 1) * 30.0, 0.0))
    assert piece.upkeep == pytest.approx((2.0, 1.0))
    seldom = learned_of(graph, ("t", "u"), bounded, _bounded_runs(4, 0), rows)
    assert seldom.refills["p"] == pytest.approx((5.0 / (4 + 1), 0.0))


@pytest.mark.parametrize("mode", [Mode.KEPT, Mode.READ])
def test_runs_with_a_piece_bounded_tell_nothing_of_other_modes(mode: Mode) -> None:
    graph, costs = _bounded_graph(), _bounded_runs(5, 3)
    told = learned_of(graph, ("t", "u"), {"p": mode}, costs, [7.0, 7.0])
    assert told.times[3] == (1.0, 1.0)
    assert not told.reads
    assert not told.hits


def _has_certain_read(world: World) -> list[tuple[int, str]]:
    return [
        (kind, piece.name)
        for kind in alone(world)
        for node in world.graph.nodes
        for piece in node.pieces
        if world.modes[piece.name] is Mode.READ and not piece.hit
    ]


@random_seeds(4, 17, 30)
def test_runs_without_parts_tell_the_whole(seed: int) -> None:
    """As a release before wrote them."""
    world = World(seed)
    for piece in world.modes:
        world.modes[piece] = Mode.KEPT
    kinds = alone(world)
    costs = [
        RunCost(RunKind.MAINTAIN, 10, 0, ms, moved=tuple(sorted(world.graph.kinds[kind].tables)))
        for kind in kinds
        for ms in [10 ** world.random.uniform(0, 4)] * FEWEST
    ]
    learned = world.learned(costs)
    took = {cost.moved: cost.elapsed_ms for cost in costs}
    for kind in kinds:
        wanted = took[tuple(sorted(world.graph.kinds[kind].tables))]
        before = evaluate(world.graph, world.modes).per_kind[kind]
        after = evaluate(learned, world.modes).per_kind[kind]
        # What was off by more than priors ever were is not believed.
        assert after == pytest.approx(max(wanted, before / 30), rel=1e-6)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys, write_workload(tmp_path, [("two", QUERIES["two"], "auto")]))


def costs_in(folder: Path) -> list[RunCost]:
    with Store.open(folder / ".impctl", create=False) as store:
        return [one for one in store.costs("two") if one.kind is RunKind.MAINTAIN]


@pytest.mark.slow
def test_each_run_records_its_operators_and_its_reads(cli: Cli, tmp_path: Path) -> None:
    cli.good("capture")
    rng = random.Random(1)
    change(tmp_path, rng, 0)
    cli.good("maintain", "--disk", "0")
    (kept,) = costs_in(tmp_path)
    assert kept.parts is not None
    assert not kept.parts.reads
    assert 0 < sum(kept.parts.times) <= kept.elapsed_ms
    change(tmp_path, rng, 1)
    with open_workbench(Settings(cli.workload)) as desk:
        (spec,), held = desk.sketched(None), stored(tmp_path, "two")
        moved = pending_of(desk, spec, held, 4e9, CommitLog()).moved
    cli.good("maintain")
    latest, *_ = costs_in(tmp_path)
    assert latest.moved == moved == ("t", "u")
    assert latest.parts is not None
    names = ["aggregate0", "join0.left", "join0.right"]
    assert [one.side for one in latest.parts.reads] == names
    for one in latest.parts.reads:
        assert (one.keys > 0) == (one.ms > 0)
        assert one.hits <= min(one.keys, one.rows)
    assert sum(one.rows for one in latest.parts.reads) > 0
    assert sum(one.ms for one in latest.parts.reads) <= sum(latest.parts.times)


@pytest.mark.slow
def test_a_plan_says_by_how_many_runs(cli: Cli, tmp_path: Path) -> None:
    coming = "changes: {every: 1h, rows: 10, deletes: 50%}"
    text = cli.workload.read_text()
    text = text.replace("t: {path: t}", f"t: {{path: t, {coming}}}")
    cli.workload.write_text(text.replace("u: {path: u}", f"u: {{path: u, {coming}}}"))
    cli.good("capture")
    rng = random.Random(1)
    for turn in range(FEWEST):
        change(tmp_path, rng, 2 * turn)
        cli.good("maintain")
        told = [one["reason"] for one in cli.one("plan", "--disk", "1GB")["state"]]
        is_known = turn == FEWEST - 1
        assert any(f"from {turn + 1} runs" in one for one in told) == is_known, told

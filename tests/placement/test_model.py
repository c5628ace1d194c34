"""Models of compiled circuits: pieces, readability and costs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import pytest
from msgspec.structs import replace

from impctl.compile.flows import SideChoice, SideFacts, StoredChoices, Strategy
from impctl.costs import STATE, StateTimes
from impctl.placement import (
    Bounded,
    KindOfChange,
    Numbers,
    OperatorCosts,
    Piece,
    PieceMode,
    StateModel,
    evaluate,
    per_day,
    per_day_together,
    restricted,
    state_model,
)
from tests.placement import tpch
from tests.placement.models import BOUNDED, KEPT, READ, model_of, piece_of


class RecordingChooser(StoredChoices, frozen=True, dict=True):
    """Makes the stored choices and records the requests."""

    @cached_property
    def requests(self) -> list[SideFacts]:
        return []

    def choose(self, facts: SideFacts) -> SideChoice:
        self.requests.append(facts)
        return super().choose(facts)


def pieces_of(model: StateModel) -> dict[str, Piece]:
    return {piece.name: piece for piece in model.pieces}


def q3(numbers: Numbers | None = None) -> dict[str, Piece]:
    """Pieces of q3: `join0` joins customers (left) with orders, `join1` these with lines."""
    circuit = tpch.circuit("q3")
    model = state_model(circuit, tpch.KINDS, tpch.numbers(circuit) if numbers is None else numbers)
    return pieces_of(model)


FEW = ("q3", "q4", "q13", "q18", "q21")
ALL = [pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in tpch.NAMES]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("has_trees", [False, True])
def test_pieces_cover_all_state(name: str, has_trees: bool) -> None:
    """Including join trees, whose state belongs to several operators."""
    result = tpch.compiled(name, has_trees=True) if has_trees else tpch.circuit(name)
    model = state_model(result, tpch.KINDS, tpch.numbers(result))
    stored = [keeper.name for keeper in result.circuit.arrangements()]
    size = sum(map(tpch.numbers(result).bytes, stored))
    assert model.bytes_of(dict.fromkeys(pieces_of(model), KEPT)) == size
    assert len(model.operators) == len(tuple(result.circuit))

    def owners(names: Iterable[str]) -> set[str]:
        """Names of sides, and of operators for other state."""
        sides = {name for name in stored if name.endswith((".left", ".right"))}
        return {name if name in sides else name.partition(".")[0] for name in names}

    assert owners(pieces_of(model)) == owners(stored)


@pytest.mark.slow
@pytest.mark.parametrize("name", tpch.NAMES)
def test_pieces_are_readable_where_circuits_allow_it(name: str) -> None:
    chooser = RecordingChooser()
    compiled = tpch.compiled(name, chooser)
    pieces = pieces_of(state_model(compiled, tpch.KINDS, tpch.numbers(compiled)))
    readable = {name for name, piece in pieces.items() if READ in piece.sizes}
    can_be = {facts.name for facts in chooser.requests if Strategy.FILES in facts.readers}
    assert readable == can_be
    for facts in chooser.requests:
        if facts.name in can_be:
            assert set(pieces[facts.name].source) == set(facts.tables)


@pytest.mark.parametrize("name", ["q4", "q18"])
def test_side_over_groupings_reads_their_tables(name: str) -> None:
    """q4: orders with a line; the distinct keys of lines are groups. q18: orders whose groups of
    lines pass a condition; their keys are groups over these groups."""
    circuit = tpch.circuit(name)
    model = state_model(circuit, tpch.KINDS, tpch.numbers(circuit))
    side = pieces_of(model)["join0.right"]
    assert side.source == ("lineitem",)
    assert side.sizes[READ] > 0


def test_side_costs_for_own_and_other_changes() -> None:
    """`join0` has customers on the left and orders on the right. Parts are on neither side."""
    circuit = tpch.circuit("q3")
    numbers = tpch.numbers(circuit)
    (left, right), *_ = (
        wires
        for operator, wires in zip(circuit.circuit, circuit.circuit.wires, strict=True)
        if operator.held_sides
    )
    for name, table, wire, own, other in (
        ("left", "customer", left, 1, 0),
        ("right", "orders", right, 0, 1),
    ):
        side = q3()[f"join0.{name}"]
        assert side.source == (table,)
        for kind, each_ns, changed in (
            (own, STATE.build_row_ns, numbers.changed(wire, tpch.KINDS[own])),
            (other, STATE.probe_key_ns, numbers.changed(left + right - wire, tpch.KINDS[other])),
        ):
            assert changed > 0
            opened = STATE.opened(numbers.rows(wire), changed)
            assert side.stored[kind] == pytest.approx(opened + changed * each_ns / 1e6)
            assert side.noted[kind] == STATE.opened_ms
        assert side.hit[own] == 0 < side.hit[other] <= 1
        assert (side.stored[2], side.noted[2], side.hit[2]) == (0, 0, 0)


def test_refill_costs_scale_with_probability() -> None:
    numbers = tpch.numbers(tpch.circuit("q3"))
    sometimes, always = Bounded(7, lambda kind: 0.5, 90), Bounded(7, lambda kind: 1.0)
    top, often = (
        q3(replace(numbers, bounded={"top0": bounded}))["top0"] for bounded in (sometimes, always)
    )
    assert (top.sizes[BOUNDED], top.sizes[KEPT]) == (7, 90)
    assert often.sizes[KEPT] == q3()["top0"].sizes[KEPT]
    for half, whole, kind in zip(top.refill, often.refill, tpch.KINDS, strict=True):
        is_below = not kind.tables.isdisjoint({"customer", "orders", "lineitem"})
        assert half == whole / 2
        assert (half > 0) == is_below
    assert BOUNDED not in q3()["aggregate0"].sizes


@pytest.mark.parametrize(
    ("changed", "fresh", "expected"),
    [
        # New orders with their lines look up orders that did not exist before.
        *((1000.0, 1.0, 0.0), (1000.0, 0.999, 1.0)),
        *((0.0, 0.5, 0.0), (0.05, 0.0, 0.05), (1.0, 0.75, 0.25)),
    ],
)
def test_new_rows_on_both_sides_need_fewer_reads(
    changed: float, fresh: float, expected: float
) -> None:
    numbers = replace(
        tpch.numbers(tpch.circuit("q3")),
        changed=lambda wire, kind: changed if "orders" in kind.tables else 0.0,
        fresh=lambda side, kind: fresh,
    )
    hit = q3(numbers)["join1.left"].hit
    assert hit[0] == pytest.approx(expected)
    assert set(hit[1:]) == {0}


def test_opening_costs_grow_with_blocks() -> None:
    times = StateTimes(opened_ms=1.0, touched_block_ns=1e6, block_rows=10)
    assert (times.opened(1000, 5), times.opened(30, 5)) == (6, 4)
    assert STATE.opened(0, 100) == STATE.opened_ms


def test_stored_filter_has_its_actual_size() -> None:
    """For many rows with few keys it is far smaller than one key per row."""
    name = "join1.right.filter"
    numbers = tpch.numbers(tpch.circuit("q3"))
    stored = replace(numbers, bytes=lambda of: 21_000 if of == name else numbers.bytes(of))
    before, after = q3(), q3(stored)
    assert after["join1.right"].sizes[READ] == 21_000 < before["join1.right"].sizes[READ]
    assert after["join0.right"].sizes == before["join0.right"].sizes


def test_conversion_to_kept_reads_whole_tables() -> None:
    circuit = tpch.circuit("q3")
    numbers, pieces = tpch.numbers(circuit), q3()
    for name, scans in (("join1.right", (2,)), ("join1.left", (0, 1)), ("aggregate0", (0, 1, 2))):
        to = pieces[name].conversion
        read = sum(
            STATE.read_whole(numbers.rows(-1 - scan), len(circuit.sources[scan].scan.table_columns))
            for scan in scans
        )
        # Rows are then sorted or grouped; a side also collects keys for a filter.
        assert to[KEPT] > read > 0
        if name.startswith("join"):
            assert to[KEPT] == pytest.approx(read + to[READ])
        else:
            assert to[READ] == to[BOUNDED] < to[KEPT] - read


@pytest.mark.parametrize(("mode", "cost"), [(KEPT, 10 + 1), (READ, 10 + 20 + 75), (BOUNDED, 3011)])
def test_costs_of_a_piece_by_mode(mode: PieceMode, cost: float) -> None:
    costs = {"stored": 1.0, "noted": 20.0, "read": 300.0, "hit": 0.25, "refill": 3000.0}
    piece = piece_of("p", dict.fromkeys(PieceMode, 0), **costs)
    operators = (OperatorCosts(work=(4.0,)), OperatorCosts(work=(6.0,), pieces=(piece,)))
    model = StateModel(operators, (KindOfChange(frozenset("r"), 3.0),))
    assert evaluate(model, {"p": mode}).per_kind == (cost,)
    assert per_day(model, {"p": mode}) == 3 * cost


def test_queries_share_the_longest_read_of_the_same_tables() -> None:
    def query(read: float, source: tuple[str, ...]) -> StateModel:
        right = piece_of("right", {READ: 0}, read=read, hit=1.0, source=source)
        kinds = (KindOfChange(frozenset({"r"}), 2.0),)
        return model_of(piece_of("left", stored=1.0), right, kinds=kinds)

    modes = {"left": KEPT, "right": READ}
    models = [query(30.0, ("t",)), query(50.0, ("t",)), query(7.0, ("t", "u"))]
    assert [per_day(model, modes) for model in models] == [62, 102, 16]
    assert per_day_together(models, [modes] * 3) == 2 * (3 + 50 + 7)
    assert per_day_together([], []) == 0


def test_invalid_models_and_pinned_pieces() -> None:
    kinds = (KindOfChange(frozenset("r"), 1.0),)
    for bad, reason in (
        ((piece_of("p"), piece_of("p")), "one name"),
        ((piece_of("p", {}),), "p: no modes"),
        ((piece_of("p", {KEPT: -1}),), "below zero"),
        ((piece_of("p", stored=(1.0, 2.0)),), "not for 1 kinds"),
    ):
        with pytest.raises(ValueError, match=reason):
            model_of(*bad, kinds=kinds)
    model = model_of(*(piece_of(name, {KEPT: 0, READ: 0}) for name in "lr"), kinds=kinds)
    assert [one.modes for one in restricted(model, {"l": (READ,)}).pieces] == [
        (READ,),
        (KEPT, READ),
    ]
    for modes, reason in (((BOUNDED,), "l cannot be bounded"), ((), "l cannot be nothing")):
        with pytest.raises(ValueError, match=reason):
            restricted(model, {"l": modes})

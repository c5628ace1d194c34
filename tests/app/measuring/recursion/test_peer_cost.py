"""The measure `peers`: a cell per point, what is given up told, a wrong answer told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from impctl.app.measuring.kinds import peer_cost
from impctl.app.measuring.registry import MEASURES
from impctl.app.workbench.workbench import Workbench
from impctl.bench.peers.simulation import Scheme, Simulation
from impctl.bench.record import Cell
from impctl.errors import UnsupportedError, WorkloadError
from impctl.workload.suite_models import OptionValue
from tests.app.measuring.recursion.network_desk import network_desk
from tests.support.measured_cells import cells_of, ground_of, values


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    with network_desk(tmp_path_factory.mktemp("network")) as desk:
        yield desk


def cells(desk: Workbench, query: str, **options: OptionValue) -> list[Cell]:
    return cells_of(ground_of(desk, "peers", query, **options))


@pytest.mark.parametrize(
    "options",
    [
        {"scheme": "dred"},
        {"schemes": "counting"},
        {"program": "paths", "schemes": "dred"},
        {"program": "tree"},
        {"phase": "both"},
        {"shares": 0.0},
        {"shares": 1.5},
        {"shares": (0.5, 0.2)},
        {"peers": 0},
        {"window": 0},
        {"selections": "best"},
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(
    desk: Workbench, options: dict[str, Any]
) -> None:
    with pytest.raises(WorkloadError):
        MEASURES["peers"].run(ground_of(desk, "peers", "pairs", **options))


def test_bytes_are_of_a_peer_and_messages_of_all(desk: Workbench) -> None:
    options: dict[str, OptionValue] = {"schemes": "dred"}
    (cell,) = cells(desk, "pairs", peers=4, **options)
    found = values(cell)
    # A kind and two columns each, facts and rows alike; the mean of two runs over four peers.
    assert found["sent_bytes"] == pytest.approx(17 * found["messages_count"] / 4)


def test_regions_and_their_seeds(desk: Workbench) -> None:
    found = cells(desk, "regions", program="regions", schemes="absorption_lazy", shares=(0.5, 1.0))
    assert [cell.equal for cell in found] == [True, True]
    gone = cells(
        desk,
        "regions",
        program="regions",
        phase="delete",
        schemes=("dred", "absorption_lazy"),
        shares=1.0,
    )
    assert all(cell.equal for cell in gone)
    # Without other sensors, those near the seeds are left.
    assert values(gone[1])["provenance_bytes"] > 0


def test_a_share_that_only_some_runs_reach_says_so(
    desk: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = iter((peer_cost._Run((point(True), point(True))), peer_cost._Run((), "stopped")))
    monkeypatch.setattr(peer_cost, "_run", lambda *_: next(runs))
    found = cells(desk, "pairs", schemes="dred", shares=(0.5, 1.0))
    assert [cell.note for cell in found] == ["1 of 2 runs stopped"] * 2
    assert all(cell.equal and cell.metrics["cpu_ms"].runs == 1 for cell in found)


def point(is_right: bool) -> peer_cost._Point:
    return peer_cost._Point({"cpu_ms": 1.0}, is_right)


def test_a_scheme_with_another_answer_is_told(
    desk: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Simulation.answer

    def wrong(self: Simulation) -> frozenset[tuple[int, ...]]:
        return right(self) - {min(right(self))}

    monkeypatch.setattr(Simulation, "answer", wrong)
    (cell,) = cells(desk, "pairs", schemes=str(Scheme.DRED))
    assert cell.equal is False


def test_a_query_over_no_network_is_told(desk: Workbench) -> None:
    with pytest.raises(UnsupportedError) as caught:
        cells(desk, "strange")
    assert caught.value.code == "not_a_network"

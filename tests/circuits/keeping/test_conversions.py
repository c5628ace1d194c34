"""What bringing a piece to another mode takes: all that is below it is read, groups are told."""

from __future__ import annotations

from typing import Any

from impctl.placement.graph import Graph, KindOfChange, Mode, Node, Piece, Work
from impctl.placement.search import conversion_ms


def node(work: Work, **told: Any) -> Node:
    costs = {"delta": (0.0,), "keys": (0.0,), "whole": (0.0,)}
    return Node(work=work, **{**costs, **told})


def piece(name: str, build: float, stream: float) -> Piece:
    same: dict[str, Any] = dict.fromkeys(
        ("upkeep", "probe", "noted", "read", "lookup", "opened"), (0.0,)
    )
    return Piece(
        name=name, sizes={Mode.KEPT: 9, Mode.READ: 1}, build=(build,), stream=(stream,), **same
    )


def test_groups_are_made_of_all_rows_below_and_told_by_their_keys() -> None:
    sides, groups = (
        (piece("left", 2.0, 50.0), piece("right", 3.0, 60.0)),
        piece("groups", 20.0, 7.0),
    )
    nodes = (
        node(Work.SCAN, table="r", whole=(100.0,)),
        node(Work.SCAN, table="s", whole=(1000.0,)),
        node(Work.JOIN, inputs=(0, 1), pieces=sides),
        node(Work.KEYED, inputs=(2,), pieces=(groups,)),
    )
    graph = Graph(nodes, (KindOfChange(frozenset({"r"}), 1.0),))
    assert conversion_ms(graph) == {
        "left": {Mode.KEPT: 102.0, Mode.READ: 2.0},
        "right": {Mode.KEPT: 1003.0, Mode.READ: 3.0},
        "groups": {Mode.KEPT: 1120.0, Mode.READ: 7.0, Mode.BOUNDED: 7.0},
    }

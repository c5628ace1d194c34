"""Comparisons with other systems: wrong results end a run, and impctl's expected results are right
on small tables."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import impctl
from benchmarks.rivals import (
    joins_in_flink,
    joins_in_pathway,
    recapture_in_spark,
    recompute_in_duckdb,
)
from benchmarks.rivals.on_disk import OnDisk, Wall, maintained
from benchmarks.rivals.pairs import (
    Compared,
    DifferentAnswersError,
    Pairs,
    Peer,
    PeerFailedError,
    Taken,
    Tree,
    Turns,
    compared,
    report,
)
from impctl.errors import StorageError
from tests.support.run_cli import Capsys

SMALL = Pairs(rows=600, partners=20)


def lazy(*words: str) -> Peer:
    """Start a peer that claims to have the expected result, or with `wrong` returns another."""
    return Peer([sys.executable, str(Path(__file__).with_name("lazy_peer.py")), *words], {})


def test_a_missing_rival_has_an_installation_hint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capsys
) -> None:
    def no_java(_: object) -> None:
        raise StorageError("no Java", hint="none")

    monkeypatch.setattr(joins_in_pathway, "has_pathway", lambda _: False)
    monkeypatch.setattr(recompute_in_duckdb, "find_spec", lambda _: None)
    monkeypatch.setattr(recapture_in_spark, "find_java", no_java)
    rivals: dict[Any, list[str]] = {
        joins_in_flink: [str(tmp_path)],
        joins_in_pathway: [],
        recapture_in_spark: [],
        recompute_in_duckdb: [],
    }
    for module, arguments in rivals.items():
        assert f"`python -m {module.__name__}" in module.__doc__
        assert module.main(arguments) == 1
        assert capsys.readouterr().out == f"{module.MISSING}\n"
        assert "install" in module.MISSING


def joined(tables: dict[str, pa.Table]) -> Counter[int]:
    """The sums of a join, computed pair by pair."""
    result: Counter[int] = Counter()
    for key, number in zip(*(tables["s"].column(c).to_pylist() for c in "ab"), strict=True):
        for partner in tables["r"].column("a").to_pylist():
            if key == partner:
                result[key] += number
    return result


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [False, True])
def test_result_and_sketches_follow_insertions_and_deletions(keeps: bool) -> None:
    tables, steps = SMALL.tables(), SMALL.steps(50)
    tree = Tree(SMALL, tables, keeps=keeps)
    sizes = set()
    for _ in range(4):
        step = next(steps)
        tree.step(step)
        assert not tree.is_right(tables)
        tables |= step.after
        totals = joined(tables)
        groups = {key: total for key, total in totals.items() if total > SMALL.least}
        assert SMALL.groups(tables) == groups
        assert tree.is_right(tables)
        sizes.add(len(groups))
        assert 0 < len(groups) < len(totals)
    assert len(sizes) > 1


def test_a_peer_gets_every_row_and_reports_its_times() -> None:
    start = [len(rows) for rows in SMALL.tables().values()]
    with lazy() as peer:
        assert peer.facts == {"lazy": "1"}
        times = peer.step(SMALL.tables(), {}, {1: 2})
        assert (times.cpu_ms, times.wall_ms) == (sum(start), 2.0 * sum(start))
        step = next(SMALL.steps(50))
        assert peer.step(step.inserted, step.deleted, {}).cpu_ms == 50.0
        assert peer.rest() == 0.5
    with pytest.raises(PeerFailedError, match="ended with 0"):
        Peer([sys.executable, "-P", "-c", ""], {})


@pytest.mark.slow
def test_only_steps_after_the_warm_up_count(capsys: Capsys) -> None:
    step_calls: list[int] = []

    def slow_at_first(_: int) -> Peer:
        peer = lazy()
        original_step = peer.step

        def step(*changes: Any) -> Taken:
            step_calls.append(1)
            return Taken(9e9, 9e9) if len(step_calls) < 6 else original_step(*changes)

        peer.step = step  # type: ignore[method-assign]
        return peer

    result = compared(SMALL, Turns(warm=4, timed=3, changed=50), slow_at_first, keeps=True)
    assert len(step_calls) == 1 + 4 + 3
    assert (result.rival_cpu_ms, result.rival_wall_ms, result.rest_ms) == (50.0, 100.0, 0.5)
    assert result.ratio == result.rival_cpu_ms / result.tree_ms
    assert "'lazy': '1'" in capsys.readouterr().out


@pytest.mark.slow
def test_a_wrong_result_ends_the_run(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    few = Turns(warm=0, timed=2, changed=50)
    rival = partial(compared, SMALL, few, lambda _: lazy("wrong"), keeps=True)
    with pytest.raises(PeerFailedError, match="1 groups are wrong"):
        rival()
    assert report(2.0, [("rival", rival, True)]) == 1
    assert "rival: 1 groups are wrong, as [(1, 2)]" in capsys.readouterr().out

    monkeypatch.setattr(Tree, "_kept", lambda *_: {})
    ours = partial(compared, SMALL, few, lambda _: lazy(), keeps=True)
    with pytest.raises(DifferentAnswersError):
        ours()
    assert report(2.0, [("own", ours, True)]) == 1


def test_a_missed_goal_is_reported_but_no_failure(capsys: Capsys) -> None:
    result = Compared(tree_ms=2.0, rival_cpu_ms=3.0, rival_wall_ms=4.0, rest_ms=0.0)
    cells = [("a", lambda: result, True), ("b", lambda: result, False)]
    assert report(2.0, cells) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("1.5 times; the goal of 2 is missed")
    assert second.endswith("1.5 times")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the state of query")
def test_stored_sketches_match_numpy_and_duckdb(tmp_path: Path) -> None:
    tables = OnDisk.written(tmp_path, 10_000, 20)
    distinct = set()
    times: list[Wall] = []
    with impctl.open(tables.workload) as opened, duckdb.connect() as connection:
        opened.capture()
        for _ in range(4):
            tables.change(200)
            maintained(opened, times)
            expected = tables.sketches()
            assert tables.stored() == expected
            for source in ("memory", "files"):
                assert recompute_in_duckdb._anew(connection, tables, source, times) == expected
            distinct.add(expected["r"])
            assert all(0 < len(ranges) < 5_000 for ranges in expected.values())
    assert len(times) == 12
    assert len(distinct) > 1
    assert len(tables.now()["s"]) == 10_000

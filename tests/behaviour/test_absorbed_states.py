"""What becomes of the state of `provenance: absorption`: taken up by other processes, rebalanced,
short of memory or disk, collected, damaged.

Sketches are those of the same queries by ranks; what functions tell is held against DuckDB. Run
where `oxidd` is installed; kills are in `tests/crash/test_killed_recursion.py`. By hand:
`IMPCTL_FUZZ=12` and `-m "slow or not slow"`.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.service import fill
from impctl.service.memory_limit import too_large
from impctl.store import states
from tests.behaviour.absorbed_workload import (
    SHIPS,
    Both,
    asking,
    changed,
    check_functions,
    fast_by,
    gone_by_duckdb,
)
from tests.behaviour.recursive_workload import (
    KEPT,
    QUERIES,
    all_by_duckdb,
    answers,
    by_duckdb,
    change,
    fragments,
    network,
    some_links,
    through_sketches,
)
from tests.crash.processes import ran
from tests.support.diagrams import with_diagrams
from tests.support.random_cases import random_cases, random_seeds
from tests.support.run_cli import Capsys, Cli, Ran

TOLD = (KEPT, "of_seeds", "from_one")
"""Of these `why` tells from the state what would go."""
LEFT_OUT = "src = 7 OR src = 13 OR dst < 9"


def check(both: Both) -> None:
    """What is stored and told of all is right, at the newest versions."""
    assert fragments(both.cli) == fragments(both.ranks)
    assert {one["provenance"] for one in both.cli.good("status").results} <= {*SHIPS}
    expected = all_by_duckdb(both.cli, {name: QUERIES[name] for name in TOLD})
    assert through_sketches(both.cli, TOLD) == expected
    assert answers(both.cli, KEPT, "--by", "state") == expected[KEPT]
    assert check_functions(both.cli, TOLD, LEFT_OUT)


@pytest.mark.long
@pytest.mark.slow
@fast_by("lazy")
@random_seeds(1, 1, 6)
def test_every_change_by_a_process_of_its_own(
    tmp_path: Path, capsys: Capsys, provenance: str, seed: int
) -> None:
    both, rng = Both(network(tmp_path, capsys, TOLD), provenance), random.Random(seed)
    assert ran(both.cli.workload, "capture").code == 0
    both.ranks.good("capture")
    for _ in range(2):
        change(tmp_path, rng)
        done = ran(both.cli.workload, "maintain")
        assert done.code == 0, done.document
        assert {one["action"] for one in done.document["results"]} <= {"exact", "none"}
        both.ranks.good("maintain")
        assert fragments(both.cli) == fragments(both.ranks)
    check(both)


@pytest.mark.slow
@fast_by("lazy")
def test_ranges_made_anew_from_the_state(tmp_path: Path, capsys: Capsys, provenance: str) -> None:
    cli = network(tmp_path, capsys, TOLD)
    text = cli.workload.read_text()
    start = text.index("{boundaries")
    end = text.index("}", start) + 1
    cli.workload.write_text(text[:start] + "{ranges: 10}" + text[end:])
    both, rng = Both(cli, provenance), random.Random(8)
    both.good("capture")
    # Many links of nodes that there were none of. They end in nodes that no link starts in: whole
    # functions of circles would be large.
    sources = [60 + rng.randrange(60) for _ in range(200)]
    targets = [1000 + rng.randrange(90) for _ in sources]
    ways = {"src": [7, 13, 7, *sources], "dst": [61, 63, 65, *targets]}
    write_deltalake(str(tmp_path / "links"), pa.table(ways), mode="append")
    both.good("maintain")
    rebalanced = both.good("capture", "--rebalance")
    assert [one["action"] for some in rebalanced for one in some] == ["rebalance"] * 2 * len(TOLD)
    assert fragments(both.cli) == fragments(both.ranks)
    change(tmp_path, rng)
    assert {one["action"] for one in both.good("maintain")[0]} <= {"exact", "none"}
    check(both)


def check_followed(folder: Path, capsys: Capsys, provenance: str, *then: str) -> None:
    """Captured and maintained twice, each time followed by such a command."""
    both, rng = Both(network(folder, capsys, TOLD), provenance), random.Random(4)
    both.good("capture")
    for _ in range(2):
        change(folder, rng)
        both.good("maintain")
        both.cli.good(*then)
    check(both)


@fast_by("eager")
def test_with_the_least_state(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, provenance: str
) -> None:
    """Nothing of it is read from tables instead: numbers of rows are nowhere else."""
    monkeypatch.setenv("IMPCTL_DISK", "0")
    check_followed(tmp_path, capsys, provenance, "status")


@fast_by("lazy")
def test_what_gc_collects_is_no_part_of_it(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, provenance: str
) -> None:
    monkeypatch.setattr(states, "BLOB_LIMIT", 0)
    check_followed(tmp_path, capsys, provenance, "gc", "--keep", "1")


@dataclass
class _Memory:
    """Enough for so many batches."""

    batches: int
    bytes: int | None = None

    def check(self, more: int = 0) -> None:
        self.batches -= 1
        if self.batches < 0:
            raise too_large(10**6)


@pytest.mark.slow
@fast_by("eager")
def test_a_capture_short_of_memory_goes_on_by_ranks_and_says_so(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, provenance: str
) -> None:
    both = Both(network(tmp_path, capsys, [KEPT]), provenance)
    limits: Iterator[_Memory] = iter([_Memory(0)])
    with monkeypatch.context() as patch:
        patch.setattr(fill, "MemoryLimit", lambda _: next(limits, _Memory(10**9)))
        captured = both.cli.good("capture")
    (told,) = [
        one for one in captured.document["warnings"] if "no provenance is stored for query" in one
    ]
    assert "[memory_exceeded]" in told
    (status,) = both.cli.good("status").results
    assert (status["mode"], status["provenance"]) == ("exact", "given_up")
    both.ranks.good("capture")
    change(tmp_path, random.Random(3))
    own, _ = both.good("maintain")
    assert {one["action"] for one in own} == {"exact"}
    assert fragments(both.cli) == fragments(both.ranks)
    assert answers(both.cli, KEPT, "--by", "state") == by_duckdb(both.cli, QUERIES[KEPT])
    words = ("why", "--query", KEPT, "--without", f"links: {LEFT_OUT}")
    (why,) = both.cli.good(*words).results
    assert why["by"] == "engine"
    assert changed(why) == gone_by_duckdb(both.cli, QUERIES[KEPT], LEFT_OUT) != Counter()
    both.cli.good("capture")
    check_functions(both.cli, [KEPT], LEFT_OUT)


# Damage.


def spoil_row(store: Path, draw: random.Random) -> None:
    """One bit of a run of state that lies in the catalog."""
    with sqlite3.connect(store / "catalog.sqlite") as connection:
        rows = connection.execute("SELECT arrangement, sequence, content FROM run").fetchall()
        arrangement, sequence, content = draw.choice(sorted(rows))
        connection.execute(
            "UPDATE run SET content = ? WHERE arrangement = ? AND sequence = ?",
            (spoiled(content, draw), arrangement, sequence),
        )
    connection.close()


def spoil_file(store: Path, draw: random.Random) -> None:
    """One bit of a run of state that is a file."""
    file = draw.choice(sorted((store / "state").iterdir()))
    file.write_bytes(spoiled(file.read_bytes(), draw))


def spoiled(content: bytes, draw: random.Random) -> bytes:
    result = bytearray(content)
    result[draw.randrange(len(result))] ^= 1 << draw.randrange(8)
    return bytes(result)


def is_right_or_refused(ran_: Ran, seen: Counter[str], what: str) -> bool:
    """Whether it went well; else it must say that the state is damaged."""
    seen[what] += 1
    if ran_.code == 0:
        return True
    codes = {ran_.error["code"], *(one["code"] for one in ran_.document.get("failures", []))}
    assert (ran_.code, codes) == (7, {"state_corrupt"}), (what, ran_.document)
    seen[f"{what} refused"] += 1
    return False


def ask(cli: Cli, seen: Counter[str]) -> None:
    """What `why` and `query` tell is right, or nothing is told."""
    words = ("why", "--query", KEPT, "--without", f"links: {LEFT_OUT}")
    if is_right_or_refused(asked := cli(*words), seen, "without"):
        (result,) = asked.results
        assert changed(result) == gone_by_duckdb(cli, QUERIES[KEPT], LEFT_OUT)
        seen[f"without by {result['by']}"] += 1
    nodes = [node for (node,) in by_duckdb(cli, QUERIES[KEPT]) if isinstance(node, int)]
    asked = cli("why", "--query", KEPT, "--row", f"n={max(nodes)}")
    if is_right_or_refused(asked, seen, "row"):
        (result,) = asked.results
        links = [one["row"] for one in result["rows"]]
        ways = {end: [one[end] for one in links] for end in ("src", "dst")}
        with duckdb.connect() as connection:
            connection.register("links", pa.table(ways))
            over = connection.execute(QUERIES[KEPT]).fetchall()
        assert (max(nodes),) in over, "what is told derives the row"
        seen[f"row by {result['by']}"] += 1
    if is_right_or_refused(asked := cli("query", "--query", KEPT), seen, "query"):
        (result,) = asked.results
        assert Counter(map(tuple, result["rows"])) == by_duckdb(cli, QUERIES[KEPT])


@pytest.mark.slow
@with_diagrams
@pytest.mark.parametrize(
    ("provenance", "is_file"),
    [
        pytest.param(SHIPS["lazy"], False, id="lazy-catalog"),
        pytest.param(SHIPS["eager"], True, id="eager-files"),
        pytest.param(SHIPS["lazy"], True, id="lazy-files", marks=pytest.mark.long),
        pytest.param(SHIPS["eager"], False, id="eager-catalog", marks=pytest.mark.long),
    ],
)
@random_cases(1, 3, 40)
def test_a_damaged_state_tells_nothing_wrong(
    tmp_path: Path,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
    provenance: str,
    cases: range,
    *,
    is_file: bool,
) -> None:
    monkeypatch.setattr(states, "BLOB_LIMIT", 0 if is_file else 1 << 30)
    cli = network(tmp_path, capsys, [KEPT])
    asking(cli, provenance)
    cli.good("capture")
    for seed in range(2):
        change(tmp_path, random.Random(seed))
        cli.good("maintain")
    store, whole = tmp_path / ".impctl", tmp_path / "whole"
    shutil.copytree(store, whole)
    seen: Counter[str] = Counter()
    for is_behind in (False, True):
        if is_behind:
            more = some_links(random.Random(2), 40)
            write_deltalake(str(tmp_path / "links"), more, mode="append")
        for seed in cases:
            draw = random.Random(seed)
            shutil.rmtree(store)
            shutil.copytree(whole, store)
            (spoil_file if is_file else spoil_row)(store, draw)
            if is_behind:
                is_right_or_refused(cli("maintain"), seen, "maintain")
            ask(cli, seen)
            if is_behind:
                cli.good("maintain", "--policy", "auto")
                ask(cli, seen)
    assert seen["maintain refused"] > len(cases) // 4, seen


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
@with_diagrams
def test_spark_derives_what_was_maintained(tmp_path: Path, capsys: Capsys) -> None:
    """One query of each way to ship functions."""
    names = dict(zip((KEPT, "from_one"), SHIPS.values(), strict=True))
    cli = network(tmp_path, capsys, [*names])
    lines = cli.workload.read_text().splitlines()
    for name, provenance in names.items():
        (at,) = (at for at, line in enumerate(lines) if line.startswith(f"  {name}:"))
        lines[at] = lines[at].replace("lineage: all", f"provenance: {provenance}, lineage: all")
    cli.workload.write_text("\n".join(lines) + "\n")
    cli.good("capture")
    rng = random.Random(4)
    for _ in range(3):
        change(tmp_path, rng)
        cli.good("maintain")
    assert {one["provenance"] for one in cli.good("status").results} == {*SHIPS}
    match = cli.verified()
    assert {result["query"] for result in match} == {*names}
    for result in match:
        assert result["answer_equal"] is (True if result["query"] == KEPT else None), result

"""Sketches of a workload over many batches, now and then held against Spark's and run by it.

`python -m tests.behaviour.sketches_replayed WORKLOAD FOLDER [--batches 200] [--every 40]` keeps the
workload's sketches in a store below FOLDER, changes its tables (they are written to: give copies),
maintains after every batch, and prints what came of it; `--join tree` is a default of its queries.

Law: Spark alone says what a sketch holds and what an answer is (`impctl verify --results`): none
lacks a range, none has one too many, and no answer through a sketch is another than without. Every
few batches another process maintains, as after a restart, and forgets what is no longer needed; the
process that went on before takes up what that one left.
Out of scope: the changes (`tests.behaviour.answers_replayed`); kept answers (`answers_replayed`).
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from impctl.service.capture import capture
from impctl.service.maintain import maintain
from impctl.service.results import CaptureResult, MaintainResult, VerifyResult
from impctl.service.verify import verify
from impctl.workload.models import Policy
from tests.behaviour.answers_replayed import ChangingTables, copy_with, replay_parser, run_by_hand

RESTART = 10
"""Every so many batches another process maintains."""
_COMMAND = "import sys; from impctl.cli.main import main; sys.exit(main())"


class SketchTally(Struct, dict=True):
    """What a run came to; `cannot` by query, `wrong` in words."""

    batches: int = 0
    restarts: int = 0
    verified: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    cannot: dict[str, str] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    """Queries whose sketch left something out when it was verified."""
    wrong: list[str] = field(default_factory=list)

    def told(self) -> Iterator[str]:
        """Lines for who reads it."""
        yield f"{self.batches} batches, {self.restarts} restarts, maintained {dict(self.actions)}"
        yield f"{self.verified} sketches verified; {len(self.left_out)} queries left something out"
        yield from (f"cannot: {name}: {why}" for name, why in sorted(self.cannot.items()))
        yield f"wrong: {len(self.wrong)}"
        yield from (f"wrong: {one}" for one in self.wrong)


class SketchReplay(ChangingTables):
    """One whose sketches are maintained, by another process now and then."""

    def __init__(self, file: Path, folder: Path, spark: Any, seed: int, few: int) -> None:
        super().__init__(file, folder, spark, seed, few)
        self.tally = SketchTally()

    def captured(self) -> None:
        """The first sketches; which queries have none, and why."""
        with self._ctx(Policy.INCREMENTAL) as ctx:
            outcome = capture(ctx, None)
        for failure in outcome.failures:
            self.tally.cannot[f"{failure.query}"] = failure.error.message
        self.sketched = [one.query for one in outcome.results if isinstance(one, CaptureResult)]

    def batch(self) -> None:
        """One commit or two to every table, and all sketches brought up to date."""
        self._change()
        self.tally.batches += 1
        if self.tally.batches % RESTART == 0:
            self.tally.restarts += 1
            self._command("maintain", "--policy", "incremental")
            self._command("gc", "--keep", "1")
            return
        with self._ctx(Policy.INCREMENTAL) as ctx:
            outcome = maintain(ctx, self.sketched)
        assert not outcome.failures, outcome.failures
        for result in outcome.results:
            assert isinstance(result, MaintainResult)
            self.tally.actions[result.action] += 1

    def _command(self, name: str, *words: str) -> None:
        which = [] if name == "gc" else [part for one in self.sketched for part in ("--query", one)]
        command = [name, str(self._file), "--store", str(self._store), *which, *words]
        words = [sys.executable, "-P", "-c", _COMMAND, *command]
        ran = subprocess.run(words, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr

    def verified(self) -> None:
        """Every sketch against Spark's, every answer with and without."""
        with self._ctx(Policy.INCREMENTAL) as ctx:
            outcome = verify(ctx, self.sketched, results=True)
        assert not outcome.failures, outcome.failures
        for one in outcome.results:
            assert isinstance(one, VerifyResult)
            self.tally.verified += 1
            where = f"{one.query} on {one.table} after {self.tally.batches} batches"
            if not one.covers or one.slack or one.results_equal is not True:
                self.tally.wrong.append(
                    f"{where}: missing {list(one.missing)}, slack {one.slack}, "
                    f"answers equal: {one.results_equal}"
                )
        with self._ctx() as ctx:
            store = ctx.reading_store()
            assert store is not None
            for query in self.sketched:
                held = store.load(query)
                assert held is not None
                if any(len(one.ranges) < one.partition.size for one in held.sketches):
                    self.tally.left_out.add(query)


def replayed(
    source: Path,
    folder: Path,
    spark: Any,
    batches: int,
    every: int,
    *,
    join: str | None = None,
    seed: int = 1,
    few: int = 40,
    tell: Callable[[SketchTally], None] = lambda _: None,
) -> SketchTally:
    """So many batches, verified after every few and at the end; `tell` hears of each time."""
    file = copy_with(source, folder, None if join is None else f"join: {join}")
    try:
        replay = SketchReplay(file, folder, spark, seed, few)
        replay.captured()
        for number in range(1, batches + 1):
            replay.batch()
            if number % every == 0 or number == batches:
                replay.verified()
                tell(replay.tally)
    finally:
        file.unlink()
    return replay.tally


def main() -> None:
    parser = replay_parser(batches=200, every=40)
    parser.add_argument("--join", default=None)
    parser.add_argument("--few", type=int, default=40, help="rows of a change, about")
    run_by_hand(parser, replayed)


if __name__ == "__main__":
    main()

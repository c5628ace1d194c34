"""Flink SQL against a join tree: processor time of a step of 1,000 rows, answers compared first.

`python -m benchmarks.rivals.joins_in_flink [JARS]`, the folder of Flink's jars (2.3; the package
`apache-flink-libraries` has them in `pyflink/lib`), else that of a `pyflink` of this interpreter;
a JDK of 17 or newer on `PATH`. The rival is `JoinsInFlink.java` beside this file, compiled here:
streaming, changelogs in and out, one slot, state on the heap, its rows from a queue of its own
process. With mini-batches it waits up to 50 ms to take a step's rows at once, without them it takes
row by row. impctl's time is a step of the engine on Arrow rows in memory, sketches and answer.
Ends with 1 where Flink is missing or an answer differs. About ten minutes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.rivals.pairs import Compared, Pairs, Peer, Turns, compared, report, say

MISSING = (
    "Flink's jars or `javac` are not there: install `apache-flink-libraries` in an environment of "
    "its own and give the folder `pyflink/lib` in it"
)
GOAL = 50.0
_CELLS = ((1, 50), (1, 0), (200, 50), (200, 0), (2_000, 50))
"""Partners, and milliseconds that rows wait for a mini-batch."""
_ROWS, _HEAP = 20_000, "-Xmx3g"
_TURNS = Turns(warm=30, timed=20)
"""Java takes a while to compile what it runs often."""


def main(arguments: list[str]) -> int:
    jars = Path(arguments[0]) if arguments else found_jars()
    if jars is None or not list(jars.glob("flink-dist-*.jar")) or shutil.which("javac") is None:
        say(MISSING)
        return 1
    with tempfile.TemporaryDirectory() as classes:
        source = Path(__file__).with_name("JoinsInFlink.java")
        compile_ = ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", classes, str(source)]
        subprocess.run(compile_, check=True, capture_output=True)
        cells = [
            (
                f"{partners} partners, mini-batches of {waits} ms",
                partial(_cell, partners, f"{classes}:{jars}/*", waits),
                partners == 200,
            )
            for partners, waits in _CELLS
        ]
        return report(GOAL, cells)


def _cell(partners: int, path: str, waits: int) -> Compared:
    pairs = Pairs(_ROWS, partners)
    command = ["java", _HEAP, "-cp", path, "JoinsInFlink", pairs.sql, str(waits)]
    return compared(pairs, _TURNS, lambda _: Peer(command, {}), keeps=True)


def found_jars() -> Path | None:
    """Those of a `pyflink` of this interpreter."""
    spec = find_spec("pyflink")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return Path(places[0], "lib") if places else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

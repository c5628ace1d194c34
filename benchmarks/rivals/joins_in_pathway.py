"""Pathway against a join tree: processor time of a step of 1,000 rows, results compared first.

`python -m benchmarks.rivals.joins_in_pathway [PYTHON]`: an interpreter that has `pathway` (0.33);
default: this one. Pathway runs in one thread. Its process takes rows from a queue of Python
objects, as its connector does; its time includes that, which is nearly all of the cell with one
partner. impctl's time is a step of the engine on Arrow rows in memory, once with its sketches alone
and once with its result materialized as well.
Ends with 1 if Pathway is missing or a result differs. About two minutes.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.rivals.pairs import Pairs, Peer, Turns, compared, report, say

MISSING = (
    "Pathway is not installed: install `pathway` in an environment of its own and give its python"
)
GOAL = 100.0
_ROWS = 20_000
_TURNS = Turns(warm=6, timed=20)


def main(arguments: list[str]) -> int:
    python = arguments[0] if arguments else sys.executable
    if not has_pathway(python):
        say(MISSING)
        return 1
    start = partial(started, python)
    cells = [
        (
            f"{partners} partners, {'answer kept' if keeps else 'sketches alone'}",
            partial(compared, Pairs(_ROWS, partners), _TURNS, start, keeps=keeps),
            partners == 200,
        )
        for partners in (1, 200)
        for keeps in (False, True)
    ]
    return report(GOAL, cells)


def has_pathway(python: str) -> bool:
    """Whether this interpreter can import it."""
    command = [python, "-c", "import pathway"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def started(python: str, least: int) -> Peer:
    script = Path(__file__).with_name("pathway_peer.py")
    return Peer([python, str(script), str(least)], {"PATHWAY_THREADS": "1"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

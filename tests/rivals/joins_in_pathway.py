"""Pathway against a join tree: processor time of a step of 1,000 rows, answers compared first.

`python -m tests.rivals.joins_in_pathway [PYTHON]`, an interpreter that has `pathway` (0.33), this
one without. Pathway runs in one thread; its process takes rows from a queue of Python objects, as
its connector does, which is in its time: the cell of one partner is nearly all that. impctl's time
is a step of the engine on Arrow rows in memory, with sketches alone and with the answer kept as
well. Ends with 1 where Pathway is missing or an answer differs. About two minutes.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.rivals.pairs import Pairs, Peer, Turns, compared, report, say

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
    asked = [python, "-c", "import pathway"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def started(python: str, least: int) -> Peer:
    script = Path(__file__).with_name("pathway_peer.py")
    return Peer([python, str(script), str(least)], {"PATHWAY_THREADS": "1"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

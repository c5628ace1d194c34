"""A peer for tests that claims to have the expected result; with `wrong`, it returns another."""

from __future__ import annotations

import json
import sys
from typing import Any


def send(result: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def main() -> None:
    is_wrong = sys.argv[1:] == ["wrong"]
    sys.stdout.write("good morning\n")
    send({"lazy": "1"})
    rows = 0
    for line in sys.stdin:
        word = line.split()[0]
        if word in "+-":
            rows += 1
        elif word == "rest":
            send({"cpu_ms": 0.5})
        elif word == "go":
            right = {"cpu_ms": float(rows), "wall_ms": 2.0 * rows}
            send({"groups": [[1, 2]]} if is_wrong else right)
            rows = 0


if __name__ == "__main__":
    main()

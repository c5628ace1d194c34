"""The join in Pathway, as `pairs` asks for it; runs in an interpreter that has `pathway` alone.

`python pathway_peer.py LEAST`: groups whose sum is above LEAST are the answer. Rows have their
table and `id` for a key, so that one that goes is found. Both tables come by one input, which
commits a step's rows at once and never by time: of two, either would wait for the other's commit.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from importlib.metadata import version
from typing import Any

import pathway as pw

_WAITS_S = 400.0

Changes = list[tuple[bool, dict[str, str | int]]]


class Row(pw.Schema):  # type: ignore[misc]  # Pathway is not installed here
    table: str = pw.column_definition(primary_key=True)
    id_: int = pw.column_definition(primary_key=True)
    a: int
    b: int


class Rows(pw.io.python.ConnectorSubject):  # type: ignore[misc]  # as above
    """Changes of both tables, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: queue.Queue[Changes] = queue.Queue()

    @property
    def _deletions_enabled(self) -> bool:
        return True

    def run(self) -> None:
        while True:
            for is_insert, row in self.steps.get():
                (self.next if is_insert else self.delete)(**row)
            self.commit()


class Answer:
    """The groups as they stand."""

    def __init__(self) -> None:
        self.groups: dict[int, int] = {}
        self.changed = threading.Condition()

    def on_change(self, key: Any, row: dict[str, int], time: int, is_addition: bool) -> None:
        """A sum inserted or deleted; of one time, both in either order."""
        del key, time
        if is_addition:
            self.groups[row["a"]] = row["total"]
        elif self.groups.get(row["a"]) == row["total"]:
            del self.groups[row["a"]]

    def on_time_end(self, time: int) -> None:
        del time
        with self.changed:
            self.changed.notify()

    def is_soon(self, expected: dict[int, int]) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.groups == expected, timeout=_WAITS_S)


def main() -> None:
    least = int(sys.argv[1])
    rows, answer = Rows(), Answer()
    both = pw.io.python.read(rows, schema=Row, autocommit_duration_ms=None)
    r, s = (both.filter(pw.this.table == name) for name in "rs")
    joined = s.join(r, s.a == r.a).select(a=r.a, b=s.b)
    totals = joined.groupby(pw.this.a).reduce(pw.this.a, total=pw.reducers.sum(pw.this.b))
    result = totals.filter(pw.this.total > least)
    pw.io.subscribe(result, on_change=answer.on_change, on_time_end=answer.on_time_end)
    level = pw.MonitoringLevel.NONE
    threading.Thread(target=lambda: pw.run(monitoring_level=level), daemon=True).start()
    threads = os.environ.get("PATHWAY_THREADS", "1")
    hello = {"pathway": version("pathway"), "python": sys.version.split()[0], "threads": threads}
    say(hello)
    follow(rows, answer)


def follow(rows: Rows, answer: Answer) -> None:
    """Steps from the input until it ends."""
    changes: Changes = []
    expected: dict[int, int] = {}
    for line in sys.stdin:
        sign, *rest = line.split()
        if sign in "+-":
            name, id_, a, b = rest
            row = {"table": name, "id_": int(id_), "a": int(a), "b": int(b)}
            changes.append((sign == "+", row))
        elif sign == "=":
            expected[int(rest[0])] = int(rest[1])
        elif sign == "rest":
            began = time.process_time()
            time.sleep(1.0)
            say({"cpu_ms": (time.process_time() - began) * 1000.0})
        else:
            cpu, wall = time.process_time(), time.perf_counter()
            rows.steps.put(changes)
            is_right = answer.is_soon(expected)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            times = {"cpu_ms": cpu * 1000.0, "wall_ms": wall * 1000.0}
            say(times if is_right else {"groups": sorted(answer.groups.items())})
            changes, expected = [], {}


def say(result: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
    os._exit(0)

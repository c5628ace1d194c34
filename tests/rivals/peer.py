"""A rival in a process of its own that follows a join: rows in by its input, answers out.

Lines are texts. A step is `+ TABLE id a b` or `- TABLE id a b` per row, then `= key sum` for each
group that the answer must then have, then `go`; the rival says a line of JSON when its answer is
that one: `cpu_ms` of all its threads and `wall_ms` from `go` on, or `groups`, as they stand where
it waited in vain. `rest` asks how many `cpu_ms` it takes in a second without changes. Before the
first step it says one line with its `versions` and settings.

Law: rows lie parsed in the rival's memory before its clock starts. The clock stops when the answer
is right, so no system pays for telling that it is done; `rest` shows what it does meanwhile.
Out of scope: which rows (`pairs`), whose turn it is (`turns`).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from tests.rivals.pairs import Groups


class PeerFailedError(Exception):
    """It ended, or its answer never became right; the message says which."""


@dataclass(frozen=True)
class Taken:
    """Milliseconds of a step: processor time of all threads, and on the wall."""

    cpu_ms: float
    wall_ms: float


class Peer:
    """The process, from the first line that it says until the block ends."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        try:
            self.facts: dict[str, Any] = self._heard()
        except PeerFailedError:
            self.close()
            raise

    def step(
        self, came: Mapping[str, pa.Table], went: Mapping[str, pa.Table], groups: Groups
    ) -> Taken:
        """Rows of tables with `id`, `a` and `b` come and go; waits for the answer to be `groups`.

        PeerFailedError where it does not become that.
        """
        lines = [*_lines("+", came), *_lines("-", went)]
        lines += [f"= {key} {total}" for key, total in groups.items()]
        result = self._asked([*lines, "go"])
        if "cpu_ms" not in result:
            kept = {(key, total) for key, total in result["groups"]}
            wrong, missing = kept - groups.items(), groups.items() - kept
            raise PeerFailedError(
                f"{len(wrong)} groups are wrong, as {sorted(wrong)[:3]}, "
                f"and {len(missing)} are missing, as {sorted(missing)[:3]}"
            )
        return Taken(result["cpu_ms"], result["wall_ms"])

    def rest(self) -> float:
        """Milliseconds of processor time in a second in which nothing changes."""
        return float(self._asked(["rest"])["cpu_ms"])

    def _asked(self, lines: Sequence[str]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n".join(lines) + "\n")
        self._process.stdin.flush()
        return self._heard()

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Some systems greet on the same stream.
            if line.startswith("{"):
                result: dict[str, Any] = json.loads(line)
                return result
        raise PeerFailedError(f"it ended with {self._process.wait()}")

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.communicate()

    def __exit__(self, *_: object) -> None:
        self.close()


def _lines(sign: str, tables: Mapping[str, pa.Table]) -> Iterator[str]:
    for name, rows in tables.items():
        columns = (rows.column(column).to_pylist() for column in ("id", "a", "b"))
        for values in zip(*columns, strict=True):
            yield " ".join((sign, name, *map(str, values)))

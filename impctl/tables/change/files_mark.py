"""A mark of the files a table consists of, so that its history is known where the log was cleaned.

Law: equal marks mean the same files (path, size, number of deleted rows), whatever their order; the
mark of a version plus the files that commits add, minus those they remove, is the mark of the
version they lead to. Like a checksum it finds accidents, not forgery.
Cost: one columnar pass over the add actions, no data file. Out of scope: what to do about another
history (`app.capturing.pins`), one log entry's content (`tables.commit_mark`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from impctl.tables.commits import Action, Commits
from impctl.tables.snapshot import Snapshot
from impctl.tables.storage import file_uri
from impctl.values import dataclass

_Words = npt.NDArray[np.uint64]
_Numbers = npt.NDArray[np.int64]

_LANES = 2
"""Sums of 64 bits each: 20,000 files in a million tables do not collide by chance."""
_PIECE = 4096
"""Files hashed at once, so that a few long names take no memory for many."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class FilesMark:
    """The files of a table at one version; `rows` by their statistics, None where one lacks it."""

    digest: str
    rows: int | None


def files_mark(snapshot: Snapshot) -> FilesMark:
    """The mark of a snapshot that was read whole."""
    return FilesMark(_text(_sum_of(snapshot)), snapshot.rows)


def is_reached(before: FilesMark, commits: Commits, after: Snapshot) -> bool | None:
    """Whether the commits lead from files of that mark to those of `after`.

    None where they do not tell the size of a removed file. An entry for a file that is there
    already, which only takes the older one's place, is no way either.
    """
    sums = np.frombuffer(bytes.fromhex(before.digest), np.uint64).copy()
    for actions in commits.by_commit():
        added, removed = (_sum_of_actions(after.path, actions, n) for n in ("add", "remove"))
        if added is None or removed is None:
            return None
        sums += added
        sums -= removed
    return bool(np.array_equal(sums, _sum_of(after)))


def _sum_of(snapshot: Snapshot) -> _Words:
    deleted = np.zeros(len(snapshot.uris), np.int64)
    if snapshot.deletions:
        deletions = snapshot.deletions
        deleted[:] = [len(deletions[uri]) if uri in deletions else 0 for uri in snapshot.uris]
    sizes = snapshot.actions.column("size_bytes").to_numpy()
    return _sums(_names(snapshot.path, snapshot.uris), sizes, deleted)


def _sum_of_actions(path: str, actions: Sequence[Action], wanted: str) -> _Words | None:
    bodies = [body for name, body in actions if name == wanted]
    sizes = [body.get("size") for body in bodies]
    if any(not isinstance(size, int) for size in sizes):
        return None
    names = _names(path, [file_uri(path, body["path"]) for body in bodies])
    deleted = [int((body.get("deletionVector") or {}).get("cardinality") or 0) for body in bodies]
    return _sums(names, np.array(sizes, np.int64), np.array(deleted, np.int64))


def _names(path: str, uris: Sequence[str]) -> list[bytes]:
    """The names below the root, where they are below it: a table keeps them when it is moved."""
    root = path.rstrip("/") + "/"
    return [uri.removeprefix(root).encode() for uri in uris]


def _sums(names: list[bytes], sizes: _Numbers, deleted: _Numbers) -> _Words:
    total = np.zeros(_LANES, np.uint64)
    for start in range(0, len(names), _PIECE):
        piece = slice(start, start + _PIECE)
        words = _words(names[piece], sizes[piece], deleted[piece])
        # A sum over files tells sets apart only where what is summed is not itself linear.
        total += _mixed(words @ _factors(words.shape[1])).sum(axis=0, dtype=np.uint64)
    return total


def _factors(words: int) -> _Words:
    """An odd factor per word and lane, the same however many words there are."""
    at = np.arange(words * _LANES, dtype=np.uint64).reshape(words, _LANES)
    return _mixed(at) | np.uint64(1)


def _words(names: list[bytes], sizes: _Numbers, deleted: _Numbers) -> _Words:
    """A row of words per file: size, deleted rows, the bytes of its name."""
    # NumPy fills up with zeros, which no name ends with.
    wide = -(-max(map(len, names)) // 8)
    content = np.array(names, f"S{wide * 8}").view(np.uint64).reshape(len(names), wide)
    numbers = np.stack([sizes, deleted], axis=1).astype(np.uint64)
    return np.concatenate([numbers, content], axis=1)


def _mixed(words: _Words) -> _Words:
    """Each word with all its bits stirred (the finish of splitmix64)."""
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _text(sums: _Words) -> str:
    return sums.tobytes().hex()

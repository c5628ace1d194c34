"""A table's commits as numbers, read from its log and added to those known before.

Law: reads entries of the log alone, and of those only what was not looked at before; no more than
`KEPT` at once. Commits that only move rows, or change none, are no arrivals; nor is the one that
made the table. An entry that is gone or damaged leaves a gap, which is noted; what is known stays.
Out of scope: keeping them (`store.arrivals`), what follows from them (`forecast`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from impctl.errors import ImpctlError
from impctl.forecast import KEPT, Arrival, History
from impctl.tables.change.commit_time import commit_time
from impctl.tables.change.size import SignedRows, signed_rows
from impctl.tables.commits import Action, Commits, read_entry
from impctl.tables.source import DeltaSource
from impctl.tables.storage import local_path
from impctl.types import TableVersion
from impctl.values import dataclass

_ELSEWHERE = 40
"""Entries that are read at once where each is a request to an object store."""
_MOST = 1 << 62
"""Counts are cut here, so that sums of a few stay within 64 bits."""
_DAMAGED = (ImpctlError, AttributeError, KeyError, TypeError, ValueError)
"""What entries lead to that are no JSON, or whose parts are of another kind than Delta's."""


@dataclass(frozen=True, slots=True)
class _Entries:
    """Entries of the log that could be read, oldest first, after `since`; and whether more were
    looked for."""

    commits: Commits
    times: tuple[float | None, ...]
    signed: Sequence[SignedRows]
    has_missed: bool


def commit_history(
    source: DeltaSource,
    held: History | None,
    texts: Mapping[TableVersion, str] | None = None,
) -> History:
    """The history up to the pinned version; `texts` are entries that were read already.

    Of a log that ends earlier than it did only what is before its end is kept. Another table than
    that of `held` begins anew.
    """
    known = _still_there(source, held)
    if known is not None and known.until == source.version:
        return known
    result = _read(source, known, texts or {})
    new = list(_arrivals(result, known is not None and known.has_missed))
    before = () if known is None else known.arrivals
    kept = (*before, *new)[-KEPT:]
    has_missed = result.has_missed or (known is not None and known.has_missed)
    return History(
        source.table_id,
        source.version,
        _since(known, result, kept, is_cut=len(before) + len(new) > KEPT),
        kept,
        has_missed and not new,
    )


def _still_there(source: DeltaSource, held: History | None) -> History | None:
    """What is known of this very table, up to where its log ends now."""
    if held is None or held.table_id != source.table_id:
        return None
    if held.until <= source.version:
        return held
    left = tuple(each for each in held.arrivals if each.version <= source.version)
    return replace(held, until=source.version, arrivals=left)


def _since(
    known: History | None, entries: _Entries, kept: Sequence[Arrival], *, is_cut: bool
) -> float | None:
    if is_cut:
        return kept[0].at
    if known is not None and known.since is not None:
        return known.since
    return next((at for at in entries.times if at is not None), None)


def _read(
    source: DeltaSource, known: History | None, texts: Mapping[TableVersion, str]
) -> _Entries:
    """The entries after what is known, from the newest back to the first one that is gone."""
    most = _ELSEWHERE if local_path(source.path) is None else KEPT
    start = -1 if known is None else known.until
    first = max(start + 1, source.version - most + 1)
    read: list[str] = []
    for version in range(source.version, first - 1, -1):
        text = texts.get(version)
        try:
            read.append(read_entry(source, version) if text is None else text)
        except (OSError, ImpctlError):
            break
    reached = source.version - len(read)
    commits = Commits(tuple(reversed(read)), source.name, reached)
    try:
        times = tuple(
            commit_time(source, version, actions)
            for version, actions in enumerate(commits.by_commit(), start=reached + 1)
        )
        return _Entries(commits, times, signed_rows(commits), reached > start)
    except _DAMAGED:
        # A run that needs the entry tells; one before a checkpoint may need nobody.
        return _Entries(Commits((), source.name, source.version), (), (), True)


def _arrivals(entries: _Entries, has_missed: bool) -> Sequence[Arrival]:
    missed = has_missed or entries.has_missed
    arrivals = []
    commits = entries.commits
    rows = zip(commits.by_commit(), commits.fed(), entries.signed, entries.times, strict=True)
    for version, (actions, read, signed, at) in enumerate(rows, start=commits.since + 1):
        if not version or signed == SignedRows(0, 0):
            continue
        arrivals.append(
            Arrival(
                version,
                at,
                _count(signed.inserted),
                _count(signed.deleted),
                len(read),
                _count(sum(_size(body) for _, body in read)) or 0,
                _operation(actions),
                missed,
            )
        )
        missed = False
    return arrivals


def _count(number: int | None) -> int | None:
    return None if number is None else min(max(number, 0), _MOST)


def _size(body: Mapping[str, Any]) -> int:
    size = body.get("size")
    return size if isinstance(size, int) else 0


def _operation(actions: Sequence[Action]) -> str:
    """What the commit says of itself; empty where it does not."""
    bodies = (body for name, body in actions if name == "commitInfo")
    said = next((b["operation"] for b in bodies if isinstance(b, dict) and "operation" in b), None)
    return said[:40].encode("utf-8", "replace").decode() if isinstance(said, str) else ""

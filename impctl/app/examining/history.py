"""Whether the history of a table lasts until the next run: what is left against what is needed.

Law: history is called gone only where log or file are really not there; that it will be gone is
told from the retention settings and the age of the oldest change not maintained yet.
Out of scope: looking for what is there (`tables.log`, `tables.log`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import timedelta

from impctl.app.examining.altering import setting_calls
from impctl.app.results.amounts import span_text
from impctl.app.results.findings import Finding, Subject
from impctl.tables.log import Retention, committed_at, retention_of, why_gone
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import DeltaSource
from impctl.types import QueryName, TableVersion
from impctl.values import dataclass

_MARGIN = 2
"""How many intervals must fit, so that one missed run does not lose the history."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How long history is kept: the shorter of two settings."""

    setting: str
    text: str
    span: timedelta


def history_findings(
    source: DeltaSource,
    snapshot: Snapshot,
    stale: Mapping[QueryName, TableVersion],
    every: timedelta | None,
) -> Iterator[Finding]:
    """What is gone, what will be before the next run; `stale` are sketches at older versions."""
    subject = Subject.of_table(source.name)
    gone = {query: why_gone(source, version) for query, version in stale.items()}
    for query, reason in gone.items():
        if reason is not None:
            yield subject.problem(
                "history",
                f"The change since version {stale[query]}, which the sketch of `{query}` is at, "
                f"is no longer available: {reason}",
                f"run `impctl capture` with `--query {query}`, then `maintain` more often",
                7,
            )
    settings = retention_of(snapshot.configuration)
    for one in settings:
        if one.kept is None:
            yield subject.warning(
                "retention",
                f"`{one.setting}` is not a duration that impctl understands: `{one.text}`",
                f"set it to a duration such as `interval 30 days`: {_longer(source, one.setting)}",
            )
    kept = _least(settings)
    if kept is not None:
        waiting = [version for query, version in stale.items() if gone[query] is None]
        age = _oldest_change(source, min(waiting)) if waiting else None
        raise_it = f"keep it longer: {_longer(source, kept.setting)}"
        yield _schedule(subject, kept, raise_it, age, every)


def _longer(source: DeltaSource, setting: str) -> str:
    return setting_calls(source.path, setting, "interval 30 days")


def _schedule(
    subject: Subject, kept: Kept, raise_it: str, age: timedelta | None, every: timedelta | None
) -> Finding:
    """Retention against the age of what is pending and the time to the next run."""
    keeps = f"History is kept for {_text(kept.span)} (`{kept.setting}`)"
    ago = "" if age is None else f"; the oldest change not yet maintained is {_text(age)} old"
    if age is not None and age >= kept.span:
        return subject.warning(
            "schedule",
            f"{keeps}{ago}, and may be removed at any time",
            "run `impctl maintain` now, and more often from now on",
        )
    if every is None:
        return subject.ok("schedule", f"{keeps}{ago}; `--every 1d` compares a schedule with that")
    runs = f"a run every {_text(every)}"
    if every >= kept.span:
        fix = f"run more often, or {raise_it}"
        return subject.problem("schedule", f"{keeps}, too short for {runs}{ago}", fix, 2)
    if age is not None and age + every >= kept.span:
        return subject.warning(
            "schedule",
            f"{keeps}{ago}: the change may be gone at the next of {runs}",
            "run `impctl maintain` now",
        )
    if every * _MARGIN > kept.span:
        return subject.warning(
            "schedule",
            f"{keeps}: with {runs}, a single failed run loses the change{ago}",
            f"run more often, or {raise_it}",
        )
    return subject.ok("schedule", f"{keeps}, enough for {runs}{ago}")


def _least(settings: tuple[Retention, ...]) -> Kept | None:
    """The shorter of the two that are known."""
    known = [Kept(one.setting, one.text, one.kept) for one in settings if one.kept is not None]
    return min(known, key=lambda one: one.span, default=None)


def _oldest_change(source: DeltaSource, version: TableVersion) -> timedelta | None:
    """How long ago the first commit after `version` was made; None where nobody can tell."""
    at = committed_at(source, version + 1)
    return None if at is None else timedelta(seconds=max(time.time() - at, 0))


def _text(span: timedelta) -> str:
    return span_text(span.total_seconds())

"""The next change of a query's tables: when, which tables, how many rows, with intervals.

Law: a kind of change that came fewer than five times is not forecast, and it is said why nothing
is. Times are never before now: what is overdue may come any moment. A kind that stayed away for
twice as long as its interval reaches speaks only where no other does.
Out of scope: how often each kind comes (`app.maintaining.kinds`), how it is told (`cli.output`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

from impctl.app.maintaining.kinds import Change, Kind
from impctl.app.results.foreseen import NextChange
from impctl.forecast import Forecast, forecast
from impctl.values import dataclass

NEEDED = 5
"""Changes of a kind without which nothing is forecast."""
_PATIENCE = 2.0
"""Times the longest pause expected, after which a kind has ceased, as it seems."""
_LOOKED_AT = 4
"""Kinds that are forecast: those that came most often."""


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Forecasts made so far: queries share tables, and so histories."""

    _known: dict[tuple[tuple[float, ...], tuple[float, ...]], Forecast | None] = field(
        default_factory=dict
    )

    def of(self, values: Sequence[float], times: Sequence[float]) -> Forecast | None:
        """As `forecast.forecast`."""
        key = (tuple(values), tuple(times))
        if key not in self._known:
            self._known[key] = forecast(values, times)
        return self._known[key]


@dataclass(frozen=True, slots=True)
class _Coming:
    """When a kind comes, in seconds from now on."""

    kind: Kind
    gap: Forecast
    since: float

    @property
    def order(self) -> tuple[bool, float]:
        """What is expected first comes first; of those that stayed away, the one seen last."""
        is_late = self.since > _PATIENCE * self.gap.high
        return is_late, self.since if is_late else self.gap.value - self.since


def next_change(kinds: Iterable[Kind], now: float, forecasts: Forecasts) -> NextChange:
    """The kind that is expected first."""
    known = sorted(kinds, key=lambda kind: (-len(kind.changes), sorted(kind.tables)))
    coming = []
    for kind in known[:_LOOKED_AT]:
        gap = None if len(kind.changes) < NEEDED else _gap(kind.changes, forecasts)
        if gap is not None:
            coming.append(_Coming(kind, gap, now - kind.changes[-1].at))
    if not coming:
        return NextChange(unknown=_why(known))
    first = min(coming, key=lambda each: each.order)
    rows = _rows(first.kind.changes, forecasts)
    return NextChange(
        tables=tuple(sorted(first.kind.tables)),
        in_s=max(0.0, first.gap.value - first.since),
        in_s_low=max(0.0, first.gap.low - first.since),
        in_s_high=max(0.0, first.gap.high - first.since),
        rows=None if rows is None else rows.value,
        rows_low=None if rows is None else rows.low,
        rows_high=None if rows is None else rows.high,
        by=first.gap.by,
        rows_by=None if rows is None else rows.by,
    )


def _gap(changes: Sequence[Change], forecasts: Forecasts) -> Forecast | None:
    """The time from one change to the next; what lies across a gap in what is known is left out."""
    pairs = [
        (after.at - before.at, before.at)
        for before, after in zip(changes, changes[1:], strict=False)
        if not after.is_after_gap
    ]
    return forecasts.of([gap for gap, _ in pairs], [*(at for _, at in pairs), changes[-1].at])


def _rows(changes: Sequence[Change], forecasts: Forecasts) -> Forecast | None:
    pairs = [
        (float(after.rows), before.at)
        for before, after in zip(changes, changes[1:], strict=False)
        if after.rows is not None
    ]
    return forecasts.of([rows for rows, _ in pairs], [*(at for _, at in pairs), changes[-1].at])


def _why(kinds: Sequence[Kind]) -> str:
    """Why nothing is forecast."""
    count = sum(len(kind.changes) for kind in kinds)
    known = {0: "no change is", 1: "1 change is"}.get(count, f"{count} changes are")
    same = " of the same tables" if count >= NEEDED else ""
    return f"{known} known, a forecast needs {NEEDED}{same}"

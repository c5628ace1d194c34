"""Whether a new choice of state is worth carrying out, or what is kept stays as it is.

Law: state that exceeds its budget is brought within it, and what a query pins is as it says. Where
nothing would bring it within, it stays as it is but after a capture. Else a
new choice is carried out where it saves a fifth of the work that is expected and what it takes to
convert comes back within a week, or where it holds bounds that are not held now: choices that are
about as good as each other do not take turns.
Out of scope: when a choice is made at all (`keeping.keep_to`).
"""

from __future__ import annotations

from collections.abc import Mapping

from impctl.app.maintaining.keeping.choice import Kept
from impctl.placement.graph import PRIORS, Mode
from impctl.placement.search import Modes, per_day_together

_LEAST_SAVED = 0.2
_DAYS = 7.0


def is_worth(kept: Kept, *, is_over: bool, has_captured: bool = False) -> bool:
    """Whether the choice is carried out; `is_over`: what is kept exceeds the budget.

    `has_captured`: a first capture leaves out what may be large before anybody knows.
    """
    if _is_asked(kept):
        return True
    is_better = kept.holds_more or _pays(kept)
    return has_captured and is_better if kept.is_out_of_reach else is_over or is_better


def _is_asked(kept: Kept) -> bool:
    """Whether a piece is kept in a way that it may not be."""
    return any(
        kept.now[name][piece.name] not in piece.modes
        for name, graph in kept.graphs.items()
        for piece in graph.pieces
    )


def _pays(kept: Kept) -> bool:
    names = list(kept.graphs)
    before = per_day_together([kept.graphs[n] for n in names], [kept.now[n] for n in names])
    after = kept.choice.ms_per_day
    if kept.choice.per_byte:
        before += kept.choice.per_byte * sum(kept.graphs[n].bytes_of(kept.now[n]) for n in names)
        after += kept.choice.per_byte * kept.choice.bytes
    saved = before - after
    takes = sum(
        _takes(kept.conversions[name], kept.now[name], kept.choice.queries[name].modes)
        for name in names
    )
    return saved > 0 and saved >= _LEAST_SAVED * before and takes <= _DAYS * saved


def _takes(conversions: Mapping[str, Mapping[Mode, float]], now: Modes, then: Modes) -> float:
    """Milliseconds to bring one query's pieces from these modes to those."""
    moved = [to.get(then[name], 0.0) for name, to in conversions.items() if now[name] != then[name]]
    return PRIORS.conversion_ms + sum(moved) if moved else 0.0

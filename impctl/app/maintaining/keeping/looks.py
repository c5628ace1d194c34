"""Whether the choice of state is to be made anew, by what the last one was made by.

Law: it is where the budget or what queries pin changed, where rates of kinds of change moved by a
factor of two, and where state exceeds the budget, but for one that the last choice could not be
brought within either. Kinds of change that come less than once in thirty days move nothing.
Out of scope: the choice (`keeping.choice`), remembering it (`store.tables`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from impctl.store.records import Chosen
from impctl.types import QueryName, TableName
from impctl.values import dataclass
from impctl.workload.models import QuerySpec

_FACTOR = 2.0
_LEAST_PER_DAY = 1 / 30
_ALIKE = 0.05
"""The share by which bytes may differ and be the same."""

Rates = Mapping[tuple[TableName, ...], float]
"""Runs a day, by the tables that move in one."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a choice would be made by now: budget and state in bytes, rates, and pins."""

    budget: int
    bytes: int
    rates: Rates
    pins: Mapping[QueryName, str]


def is_to_look(made_by: Chosen | None, now: Seen) -> bool:
    """Whether a choice is made anew."""
    return (
        made_by is None
        or is_asked_otherwise(made_by, now.budget, now.pins)
        or now.bytes > now.budget
        or have_moved(made_by.rates, now.rates)
    )


def is_asked_otherwise(made_by: Chosen | None, budget: int, pins: Mapping[QueryName, str]) -> bool:
    """Whether the workload asks for something else than the choice was made by, or none was."""
    return made_by is None or made_by.budget != budget or dict(made_by.pins) != dict(pins)


def is_known_to_exceed(made_by: Chosen | None, now: Seen) -> bool:
    """Whether state exceeds a budget that the last choice could not bring it within either."""
    return (
        made_by is not None
        and made_by.settled
        and now.bytes > now.budget
        and made_by.bytes > now.budget
        and not is_asked_otherwise(made_by, now.budget, now.pins)
        and abs(now.bytes - made_by.bytes) <= _ALIKE * made_by.bytes
        and not have_moved(made_by.rates, now.rates)
    )


def have_moved(before: Rates, now: Rates) -> bool:
    """Whether a kind of change comes twice as often as before, or half as often."""
    for kind in before.keys() | now.keys():
        low, high = sorted((before.get(kind, 0.0), now.get(kind, 0.0)))
        if high >= _LEAST_PER_DAY and high >= _FACTOR * low:
            return True
    return False


def pins_of(specs: Iterable[QuerySpec]) -> dict[QueryName, str]:
    """What queries say of their state, of those that say something."""
    return {spec.name: str(spec.state) for spec in specs if spec.state is not None}

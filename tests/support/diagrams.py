"""Decision diagrams: whether they are installed, the mark of tests of them, a look inside."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from impctl.engine.fixpoint import absorption
from impctl.engine.fixpoint.absorption import Absorption, Grounded

try:
    import oxidd  # noqa: F401  # asked whether it is there
except ModuleNotFoundError:
    HAS_DIAGRAMS = False
else:
    HAS_DIAGRAMS = True

with_diagrams = pytest.mark.skipif(not HAS_DIAGRAMS, reason="`oxidd` (extra `bdd`) is missing")


@pytest.fixture(autouse=True, scope="session")
def small_cache() -> Iterator[None]:
    """Functions of tests are few; to allocate the cache that the product has takes 10 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(absorption, "_CACHE", 1 << 10)
        yield


def take_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they were not installed."""
    for name in ("oxidd", "oxidd.bdd"):
        monkeypatch.setitem(sys.modules, name, None)


def derivations_in(absorption: Absorption) -> list[Grounded]:
    """All derivations whose bodies are there, in the order in which they came."""
    held = absorption._derivations.values()
    awake = [one for result in held for one in result if absorption._is_there(one)]
    asleep = absorption._asleep
    return awake if asleep is None else [*awake, *asleep.here()]


def remembered(absorption: Absorption) -> int:
    """How many derivations take up room, asleep or not."""
    asleep = 0 if absorption._asleep is None else len(absorption._asleep)
    return asleep + sum(map(len, absorption._derivations.values()))

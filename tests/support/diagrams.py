"""Decision diagrams: whether they are installed, the mark of their tests, their derivations."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from impctl.engine.fixpoint import absorption
from impctl.engine.fixpoint.absorption import Absorption, Grounded

try:
    import oxidd  # noqa: F401  # imported to see whether it is installed
except ModuleNotFoundError:
    HAS_DIAGRAMS = False
else:
    HAS_DIAGRAMS = True

with_diagrams = pytest.mark.skipif(not HAS_DIAGRAMS, reason="`oxidd` (extra `bdd`) is missing")


@pytest.fixture(autouse=True, scope="session")
def small_cache() -> Iterator[None]:
    """Tests have few functions, and allocating the cache of the product takes 10 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(absorption, "_CACHE", 1 << 10)
        yield


def take_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package appear as not installed."""
    for name in ("oxidd", "oxidd.bdd"):
        monkeypatch.setitem(sys.modules, name, None)


def derivations_in(absorption: Absorption) -> list[Grounded]:
    """All derivations in memory, loaded or lazy."""
    loaded = [one for result in absorption._derivations.values() for one in result]
    return loaded if absorption._asleep is None else [*loaded, *absorption._asleep.unused()]

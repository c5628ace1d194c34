"""Whether decision diagrams are installed, and the mark of tests that need them."""

from __future__ import annotations

import sys

import pytest

try:
    import oxidd  # noqa: F401  # asked whether it is there
except ModuleNotFoundError:
    HAS_DIAGRAMS = False
else:
    HAS_DIAGRAMS = True

with_diagrams = pytest.mark.skipif(not HAS_DIAGRAMS, reason="`oxidd` (extra `bdd`) is missing")


def take_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they were not installed."""
    for name in ("oxidd", "oxidd.bdd"):
        monkeypatch.setitem(sys.modules, name, None)

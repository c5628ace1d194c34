"""Decision diagrams: whether they are installed, the mark of tests of them, a look inside."""

from __future__ import annotations

import pytest

from impctl.engine.fixpoint.absorption import Absorption, Grounded

try:
    import oxidd  # noqa: F401  # asked whether it is there
except ModuleNotFoundError:
    HAS_DIAGRAMS = False
else:
    HAS_DIAGRAMS = True

with_diagrams = pytest.mark.skipif(not HAS_DIAGRAMS, reason="`oxidd` (`impctl[bdd]`) is missing")


def derivations_in(absorption: Absorption) -> set[Grounded]:
    """All derivations that it remembers."""
    return {one for found in absorption._derivations.values() for one in found}

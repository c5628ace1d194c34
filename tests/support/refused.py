"""What is refused, with the code that says why."""

from __future__ import annotations

import pytest

from impctl.errors import ImpctlError


def refused(
    kind: type[ImpctlError], code: str, match: str | None = None
) -> pytest.RaisesExc[ImpctlError]:
    """The block ends with an error of this kind and code."""
    return pytest.raises(kind, match=match, check=lambda error: error.code == code)

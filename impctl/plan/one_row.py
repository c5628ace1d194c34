"""The relation behind a SELECT without FROM.

Law: it has one row, always, and no columns; no table has part in it, so nothing of it is sketched.
Out of scope: nodes over inputs and tables (`plan.nodes`).
"""

from __future__ import annotations

from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class OneRow:
    """One row without columns."""

    attributes: tuple[()] = ()
    span: None = None
    """It stands nowhere in the text."""

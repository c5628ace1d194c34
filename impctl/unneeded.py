"""pandas, which Arrow loads where it is installed, though nobody asks for anything of it.

Loading it takes longer than all else that a command without Spark loads.
Law: to the process of a command without Spark pandas is not installed, which impctl does not ask
for; where Spark is about to start, and in a program that calls impctl, it is there as ever.
Out of scope: who needs it (`spark.session`).
"""

from __future__ import annotations

import sys
from types import ModuleType

_NAME = "pandas"


class _Absent:
    """Says that it is not installed; the first in the list of what finds modules."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        """None for what is not its own."""
        if name == _NAME:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


_ABSENT = _Absent()


def hide_pandas() -> None:
    """From now on it is not installed, unless it is loaded already."""
    if _ABSENT not in sys.meta_path:
        sys.meta_path.insert(0, _ABSENT)


def show_pandas() -> None:
    """It is as installed as it was."""
    if _ABSENT in sys.meta_path:
        sys.meta_path.remove(_ABSENT)

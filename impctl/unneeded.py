"""Keeps Arrow from loading pandas where nothing needs it.

Loading pandas takes longer than everything else that a command without Spark loads.
Law: pandas is hidden only in the process of a command without Spark, which impctl does not need it
for. Where Spark is about to start, and in a program that calls impctl, it can be imported as usual.
"""

from __future__ import annotations

import sys
from types import ModuleType

_NAME = "pandas"


class _PandasHider:
    """A finder that reports pandas as not installed."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        if name == _NAME:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


_HIDER = _PandasHider()


def disable_pandas() -> None:
    """Report pandas as not installed from now on, unless it is loaded already."""
    if _HIDER not in sys.meta_path:
        sys.meta_path.insert(0, _HIDER)


def enable_pandas() -> None:
    """Undo `hide_pandas`."""
    if _HIDER in sys.meta_path:
        sys.meta_path.remove(_HIDER)

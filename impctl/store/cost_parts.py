"""Parts of what a run cost, as text of its catalog row.

Law: times come back to a thousandth of a millisecond, everything else as it was; a text that
impctl did not write is as none, since nothing but an estimate comes of it.
Out of scope: the row and its seal (`store.costs`).
"""

from __future__ import annotations

import json
import math
from typing import Any

from impctl.store.records import RunParts, SideRead

_DIGITS = 3


def parts_text(parts: RunParts | None) -> str:
    """The parts as text; an empty one for none."""
    if parts is None:
        return ""
    times = [round(ms, _DIGITS) for ms in parts.times]
    reads = {
        one.side: [one.keys, one.hits, one.rows, round(one.ms, _DIGITS)] for one in parts.reads
    }
    return json.dumps({"times": times, "reads": reads}, separators=(",", ":"))


def parts_in(text: str = "") -> RunParts | None:
    """The parts that a text tells; None for an empty one, and for one that tells no such thing."""
    if not text:
        return None
    try:
        told = json.loads(text)
        times = tuple(_amount(ms) for ms in told["times"])
        reads = tuple(_read(side, *numbers) for side, numbers in told["reads"].items())
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return RunParts(times, reads)


def _read(side: str, keys: int, hits: int, rows: int, ms: float) -> SideRead:
    return SideRead(side, int(_amount(keys)), int(_amount(hits)), int(_amount(rows)), _amount(ms))


def _amount(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise ValueError("not an amount")
    return float(value)

"""Window calls that see their whole partition, so that all its rows have one value.

Law: `is_whole` only where the frame of every row is all rows of its partition, whatever the order.
Out of scope: functions whose value depends on the order of these rows (`plan.functions`).
"""

from __future__ import annotations

from impctl.plan.nodes import WindowCall

_WHOLE = frozenset(
    f"{unit} between unbounded preceding and unbounded following" for unit in ("rows", "range")
)


def is_whole(call: WindowCall) -> bool:
    """Whether the call's frame is the whole partition; without ORDER BY and frame it is."""
    if call.frame is None:
        return not call.order
    return " ".join(call.frame.lower().split()) in _WHOLE

"""What one step of one query did and cost, as the step leaves it and results tell it.

Law: values only; whoever tells of steps need not know how one is made.
Out of scope: making a step (`app.maintaining.step`), telling of it (`app.maintaining.entries`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from impctl.app.results.tree_work import TreeWork
from impctl.store.records import RunParts
from impctl.types import AccessId, TableName, TableVersion
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class StepDone:
    """What one step did and cost; fragments by access."""

    action: str
    versions: Mapping[TableName, TableVersion]
    added: Mapping[AccessId, tuple[int, ...]] = field(default_factory=dict)
    removed: Mapping[AccessId, tuple[int, ...]] = field(default_factory=dict)
    changes: int = 0
    changed_bytes: int = 0
    read_ms: float = 0.0
    engine_ms: float = 0.0
    commit_ms: float = 0.0
    unsure: int = 0
    refilled: tuple[int, int] = (0, 0)
    """Groups whose bounded buffer was filled again, and the rows read for that."""
    tree: TreeWork | None = None
    """What its join trees did, where it has some."""
    note: str = ""
    """What expired in it and what was read for that, and whether a recursion was found anew."""
    may_change_answer: bool = True
    parts: RunParts | None = None
    """What its operators took and its sides read, where the engine stepped a circuit."""

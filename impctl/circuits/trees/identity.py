"""What the trees of a plan are called, so that state is taken up by its own kind.

Law: a name changes whenever a node, an edge or what is kept does. Which tree a plan has is not told
by the plan alone: a later release may choose another one.
Out of scope: keeping the name (`app.capturing.meta`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from impctl.circuits.trees.explanation import tree_entry, tree_lines
from impctl.circuits.trees.shape import NoTree, TreeShape

_NONE = "none"


def trees_id(shapes: Sequence[TreeShape | NoTree]) -> str:
    """Names the join trees of a plan's branches; empty without one."""
    drawn = [
        _NONE if isinstance(shape, NoTree) else "\n".join(tree_lines(tree_entry(shape, {})))
        for shape in shapes
    ]
    if all(one == _NONE for one in drawn):
        return ""
    return hashlib.sha256("\n\n".join(drawn).encode()).hexdigest()[:16]

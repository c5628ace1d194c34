"""Stored sketches as results show them.

Law: shows what is stored, computes nothing.
Out of scope: how it looks (`cli.output.protocol`).
"""

from __future__ import annotations

from impctl.app.results.results import SketchEntry
from impctl.store.records import StoredSketch


def sketch_entry(sketch: StoredSketch) -> SketchEntry:
    """A stored sketch as results show it."""
    return SketchEntry(
        sketch.table, sketch.attribute, sketch.fragments.ids, sketch.partition.ranges
    )

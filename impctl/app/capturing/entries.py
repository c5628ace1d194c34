"""Stored sketches as results show them.

Law: shows what is stored, computes nothing.
Out of scope: how it looks (`cli.output.protocol`).
"""

from __future__ import annotations

from impctl.app.results.results import SketchEntry
from impctl.store.records import StoredSketch
from impctl.workload.models import QuerySpec


def sketch_entry(sketch: StoredSketch) -> SketchEntry:
    """A stored sketch as results show it."""
    return SketchEntry(
        sketch.table, sketch.attribute, sketch.fragments.ids, sketch.partition.ranges
    )


def provenance_kept(spec: QuerySpec, kept: str) -> str | None:
    """How recursion is kept that is to be by absorption: `kept` as of the state, or given up."""
    return None if spec.provenance is None else kept or "given_up"

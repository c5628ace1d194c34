"""Whether a query may fail through its sketch although it works without one.

Law: whoever hands out something to be computed later, where nobody can try again without the
sketch (a text, a frame), leaves the sketch away where this may be.
Out of scope: the proof (`safety.failures`), trying again (`app.using.answering`).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from impctl.app.preparing.facts import fact_of, facts_of
from impctl.app.results.results import NO_SKETCH
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.workbench.pinned import PinnedTables
from impctl.errors import UnsafeSketchError
from impctl.plan.nodes import Attribute, scans_of
from impctl.safety.failures import Interval, Sizes, part_failure
from impctl.safety.lattice import Refusal
from impctl.tables.snapshot import Snapshot
from impctl.tables.statistics import column_statistics
from impctl.types import AccessId, AttributeId

_HINT = "rewrite the query so that it cannot fail, for instance with `nullif(y, 0)` or `try_divide`"


def part_failure_of(tables: PinnedTables, result: Fresh) -> Refusal | None:
    """What of the query may fail over the rows that its sketches let through; None for nothing."""
    if not result.sketches:
        return None
    sketched = {sketch.access: sketch.attribute for sketch in result.sketches}
    scans = scans_of(result.query.root)
    assumed = [fact_of(one) for one in result.assumptions]
    if part_failure(result.query, sketched, assumed, Sizes({}, {})) is None:
        return None
    # Only now are statistics worth reading.
    facts = (*assumed, *facts_of(tables, scans))
    return part_failure(result.query, sketched, facts, _sizes(tables, result))


def never_failing(tables: PinnedTables, result: Fresh, *, required: bool) -> Fresh:
    """The query with sketches through which it fails only if it fails without; else with none.

    It is told then; UnsafeSketchError where the sketch is `required`.
    """
    failing = part_failure_of(tables, result)
    if failing is None:
        return result
    name = result.prepared.spec.name
    if required:
        raise UnsafeSketchError(
            f"Query `{name}` cannot be rewritten with its sketch: {failing.reason}",
            hint=f"{_HINT}; or run it with `impctl query`, which tries again without the sketch",
            code="fails_in_part",
            location=result.prepared.spec.location,
        )
    warning = f"query `{name}` is rewritten without its sketch: {failing.reason}; {_HINT}"
    warnings = (*result.warnings, f"{warning} [fails_in_part]")
    return replace(result, sketches=(), warnings=warnings, action=NO_SKETCH, reason=failing.reason)


def _sizes(tables: PinnedTables, result: Fresh) -> Sizes:
    rows: dict[AccessId, int] = {}
    bounds: dict[AttributeId, Interval] = {}
    for scan in scans_of(result.query.root):
        snapshot = tables.snapshot(scan.table)
        if snapshot.rows is not None:
            rows[scan.access] = snapshot.rows
        for attribute in scan.attributes:
            known = _bounds(snapshot, attribute)
            if known is not None:
                bounds[attribute.id] = known
    return Sizes(rows, bounds)


def _bounds(snapshot: Snapshot, attribute: Attribute) -> Interval | None:
    """What the statistics say that all numbers of the column lie between."""
    own = attribute.type
    if own is None or not own.is_numeric or own.is_fractional:
        return None
    known = column_statistics(snapshot, attribute.name)
    if known.minimum is None or known.maximum is None:
        return None
    assert isinstance(known.minimum, int), "decimals are unscaled"
    assert isinstance(known.maximum, int), "decimals are unscaled"
    return Fraction(known.minimum, 10**own.scale), Fraction(known.maximum, 10**own.scale)

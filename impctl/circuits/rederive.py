"""A circuit's state under new ranges, derived from its state under the old ones.

Law: after `rederived` the circuit is as if it had been filled under the new ranges. That is
possible where the state of the first grouping, or the counts at the root, say all about the rows
below: plans of one table without joins, set operations, extremes or DISTINCT inside aggregates.
Fragments that live on whole in a new range are renumbered, those of one new range added up; the
rows of fragments that were split are needed again, and nothing else of the table, since only they
tell the parts apart. A grouping by the attribute itself needs no rows at all.
Out of scope: reading those rows, and what to do where nothing can be derived (`app.rebalance`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from impctl.circuits.compile import Compiled
from impctl.circuits.session import MaintainedQuery
from impctl.engine.batch import Batch
from impctl.engine.tags import RowTags
from impctl.sketch.sketch import Renumbering


def can_rederive(compiled: Compiled) -> bool:
    """Whether the state of this circuit can be brought under other ranges."""
    return compiled.chain is not None


def needs_rows(compiled: Compiled, renumbering: Renumbering) -> bool:
    """Whether the rows of split ranges have to be read again."""
    if not bool((renumbering.targets < 0).any()):
        return False
    return compiled.chain is None or not compiled.chain.is_keyed


def rederived(
    held: MaintainedQuery, compiled: Compiled, renumbering: Renumbering, rows: Iterable[pa.Table]
) -> MaintainedQuery:
    """A session on `compiled`, the circuit of the same plan under the new ranges.

    `rows` are those of the split ranges, with the columns the circuit reads; none where
    `needs_rows` says so. The rows per range are left for the caller to fill.
    """
    chain, before = compiled.chain, held.compiled.chain
    assert chain is not None
    assert before is not None
    session = MaintainedQuery(compiled)
    session.count(chain.start())
    batches = _read(compiled, rows)
    if chain.first is not None:
        session.count(chain.adopt(before, renumbering, batches))
        return session
    session.count(_renumbered(held, renumbering))
    for batch in batches:
        session.count(compiled.circuit.step(batch))
    return session


def _renumbered(held: MaintainedQuery, renumbering: Renumbering) -> Batch:
    """Without a grouping a result row has one fragment, so the root's counts add up."""
    (counts,) = held.merge.counts
    kept = np.flatnonzero((renumbering.targets >= 0) & (counts > 0))
    return Batch({}, counts[kept], (RowTags(renumbering.targets[kept].astype(np.int32)),))


def _read(compiled: Compiled, rows: Iterable[pa.Table]) -> Iterator[Batch]:
    (source,) = compiled.sources
    for table in rows:
        yield source.scan.read(table, np.ones(len(table), dtype=np.int64))

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

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from impctl.data.vector import Vector
from impctl.engine.batch import Batch
from impctl.engine.operators.aggregate import Aggregate
from impctl.engine.tags import RowTags, Tags
from impctl.maintain.compile import Chain, Compiled
from impctl.maintain.partials import start_upper
from impctl.maintain.session import MaintainedQuery
from impctl.sketch.partition import RangePartition
from impctl.sketch.renumbering import Renumbering


def can_rederive(compiled: Compiled) -> bool:
    """Whether the state of this circuit can be brought under other ranges."""
    return compiled.chain is not None


def needs_rows(compiled: Compiled, renumbering: Renumbering) -> bool:
    """Whether the rows of split ranges have to be read again."""
    if not bool((renumbering.targets < 0).any()):
        return False
    return compiled.chain is None or not _is_keyed(compiled, compiled.chain)


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
    circuit = compiled.circuit
    if chain.first is None:
        _renumber_root(held, session, renumbering)
        for batch in _read(compiled, rows):
            circuit.step(batch)
        return session
    assert before.first is not None
    mine, theirs = circuit.operators[chain.first], held.circuit.operators[before.first]
    assert isinstance(mine, Aggregate)
    assert isinstance(theirs, Aggregate)
    start_upper(compiled, chain.first)
    below = _through(compiled, chain.first, _read(compiled, rows))
    key_tags = _tags_of(chain, renumbering.new) if mine.is_keyed else None
    output = mine.adopt(theirs, renumbering.targets, below, key_tags)
    circuit.resume(output, chain.first + 1)
    return session


def _is_keyed(compiled: Compiled, chain: Chain) -> bool:
    """Whether a group's fragment follows from its key; without a grouping there is none."""
    if chain.first is None:
        return False
    operator = compiled.circuit.operators[chain.first]
    return isinstance(operator, Aggregate) and operator.is_keyed


def _renumber_root(
    held: MaintainedQuery, session: MaintainedQuery, renumbering: Renumbering
) -> None:
    """Without a grouping a result row has one fragment, so the root's counts add up."""
    (counts,) = held.circuit.merge.counts
    kept = np.flatnonzero((renumbering.targets >= 0) & (counts > 0))
    tags = RowTags(renumbering.targets[kept].astype(np.int32))
    session.circuit.resume(Batch({}, counts[kept], (tags,)), len(session.circuit.operators))


def _read(compiled: Compiled, rows: Iterable[pa.Table]) -> Iterator[Batch]:
    (source,) = compiled.sources
    for table in rows:
        yield source.scan.read(table, np.ones(len(table), dtype=np.int64))


def _through(compiled: Compiled, first: int, batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches as the first grouping gets them: what is below it remembers nothing."""
    for batch in batches:
        passed = batch
        for operator in compiled.circuit.operators[:first]:
            passed = operator.step(passed)
        if len(passed):
            yield passed


def _tags_of(chain: Chain, partition: RangePartition) -> Callable[[Sequence[Vector]], Tags]:
    """The fragment of each group by the grouping column that equals the attribute."""
    place = chain.first_key
    assert place is not None
    return lambda keys: RowTags(partition.fragments_of(keys[place]))

"""Who reads the rows that a circuit does not keep.

Law: each side is read as its capture chose, whoever asks; what files are read for is counted and
timed.
Out of scope: the reading (`by_files`, `by_spark`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field

from impctl.app.capturing.partners.by_files import FilePartners
from impctl.app.capturing.partners.by_spark import Partners
from impctl.app.workbench.workbench import Workbench
from impctl.compile.compile import Way
from impctl.compile.flows import Strategy
from impctl.data.keys import group_rows
from impctl.data.vector import Vector
from impctl.engine.batch import Batch
from impctl.expr.nodes import Expr
from impctl.sketch.partition import RangePartition
from impctl.stopwatch import Stopwatch
from impctl.store.records import SideRead
from impctl.types import AccessId, AttributeId, TableName, TableVersion
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class PartnerReader:
    """Reads a side from files where that was chosen, by Spark else."""

    by_files: FilePartners
    by_spark: Partners
    from_files: frozenset[str]
    keys: Callable[[str], Sequence[AttributeId]]
    """The columns by which a side is asked."""
    _done: dict[str, SideRead] = field(default_factory=dict)

    def rows(self, side: str, keys: Sequence[Vector]) -> Batch:
        """As `engine.lookups.RowReader`."""
        if side not in self.from_files:
            return self.by_spark.rows(side, keys)
        watch = Stopwatch()
        result = self.by_files.rows(side, keys)
        ms, asked = watch.ms, len(keys[0])
        self._note(SideRead(side, asked, self._hits(side, asked, result), len(result), ms))
        return result

    def _note(self, read: SideRead) -> None:
        """Add a read to those of its side."""
        done = self._done.get(read.side, SideRead(read.side))
        self._done[read.side] = SideRead(
            read.side,
            done.keys + read.keys,
            done.hits + read.hits,
            done.rows + read.rows,
            done.ms + read.ms,
        )

    def whole(self, side: str) -> Iterator[Batch]:
        """As `engine.lookups.RowReader`; only groups are read whole, and these from files."""
        assert side in self.from_files
        return self.by_files.whole(side)

    def moved(self, side: str, before: Expr, after: Expr) -> Iterator[Batch]:
        """As `engine.lookups.RowReader`; such rows are read from files."""
        assert side in self.from_files
        watch, rows = Stopwatch(), 0
        for batch in self.by_files.moved(side, before, after):
            rows += len(batch)
            yield batch
        self._note(SideRead(side, 1, 1, rows, watch.ms))

    def _hits(self, side: str, asked: int, batch: Batch) -> int:
        """How many keys have rows, at most those that were asked; rows of others may have come."""
        if not len(batch):
            return 0
        columns = [batch.columns[key] for key in self.keys(side)]
        return min(asked, len(group_rows(columns, len(batch)).codes))

    def reads(self) -> tuple[SideRead, ...]:
        """What was read of each side that files are read for, be it nothing."""
        return tuple(self._done.get(side, SideRead(side)) for side in sorted(self.from_files))


PartnersAt = Callable[[Mapping[TableName, TableVersion]], PartnerReader]
"""Makes the reader of a step that leads to these versions."""


def partners_of(
    desk: Workbench, way: Way, partitions: Mapping[AccessId, RangePartition]
) -> PartnersAt | None:
    """The readers for a circuit; None where it keeps all rows it needs."""
    compiled = way.compiled
    if compiled is None or not compiled.distant:
        return None
    from_files = frozenset(compiled.sides_by(Strategy.FILES))

    def at(versions: Mapping[TableName, TableVersion]) -> PartnerReader:
        files = FilePartners(desk, compiled, partitions, versions)
        spark = Partners(desk, compiled, partitions, versions)
        return PartnerReader(files, spark, from_files, lambda side: compiled.read_side(side).keys)

    return at

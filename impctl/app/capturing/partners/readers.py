"""Who reads the rows that a circuit does not keep.

Law: each side is read as its capture chose, whoever asks.
Out of scope: the reading (`by_files`, `by_spark`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from impctl.aliases import AccessId, TableName, TableVersion
from impctl.app.capturing.partners.by_files import FilePartners
from impctl.app.capturing.partners.by_spark import Partners
from impctl.app.workbench.workbench import Workbench
from impctl.circuits.strategy import Strategy
from impctl.circuits.way import Way
from impctl.data.vector import Vector
from impctl.engine.batch import Batch
from impctl.engine.distant_rows import RowReader
from impctl.sketch.partition import RangePartition
from impctl.values import dataclass

PartnersAt = Callable[[Mapping[TableName, TableVersion]], RowReader]
"""Makes the reader of a step that leads to these versions."""


@dataclass(frozen=True, slots=True)
class _EachByItsOwn:
    """Reads a side from files where that was chosen, by Spark else."""

    by_files: FilePartners
    by_spark: Partners
    from_files: frozenset[str]

    def rows(self, side: str, keys: Sequence[Vector]) -> Batch:
        if side in self.from_files:
            return self.by_files.rows(side, keys)
        return self.by_spark.rows(side, keys)

    def whole(self, side: str) -> Batch:
        assert side in self.from_files, "only groups are read whole, and these from files"
        return self.by_files.whole(side)


def partners_of(
    desk: Workbench, way: Way, partitions: Mapping[AccessId, RangePartition]
) -> PartnersAt | None:
    """The readers for a circuit; None where it keeps all rows it needs."""
    compiled = way.compiled
    if compiled is None or not compiled.distant:
        return None
    from_files = frozenset(compiled.sides_by(Strategy.FILES))

    def at(versions: Mapping[TableName, TableVersion]) -> RowReader:
        files = FilePartners(desk, compiled, partitions, versions)
        return _EachByItsOwn(files, Partners(desk, compiled, partitions, versions), from_files)

    return at

"""A stored query opened for the choice of its state: its circuit, its sizes, and how it is kept.

Law: nothing of its state is read but how large its runs are.
Out of scope: the choice (`placement`), carrying it out (`conversion`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from impctl.app.capturing.chosen_way import check_circuit
from impctl.app.capturing.definition import check_definition
from impctl.app.capturing.pins import catch_up, check_pins
from impctl.app.capturing.reopened import Reopened, reopened
from impctl.app.workbench.workbench import Workbench
from impctl.compile.compile import Compiled
from impctl.engine.operator import Operator
from impctl.sketch.sketch import Mode
from impctl.store.reader import StoreReader
from impctl.store.records import StoredQuery
from impctl.types import QueryName
from impctl.values import dataclass
from impctl.workload.models import QuerySpec


@dataclass(frozen=True, slots=True)
class Size:
    """Rows and bytes of one stored piece."""

    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """A query at the versions it stands at; `sizes` are by the names of its stored pieces."""

    stored: StoredQuery
    as_stored: Reopened
    sizes: Mapping[str, Size]

    @property
    def compiled(self) -> Compiled:
        """Its circuit; only exact queries are opened."""
        assert self.as_stored.way.compiled is not None
        return self.as_stored.way.compiled

    def bytes_of(self, operator: Operator) -> int:
        """What is stored of an operator's state."""
        names = {keeper.name for keeper in operator.arrangements()}
        return sum(size.bytes for name, size in self.sizes.items() if name in names)


def opened(
    desk: Workbench, store: StoreReader, spec: QuerySpec, stored: StoredQuery
) -> Opened | None:
    """The query; None where it keeps no state that the engine steps.

    RecaptureNeededError where its state is another query's by now, or that of other tables: what
    is read would be theirs.
    """
    if stored.mode is not Mode.EXACT:
        return None
    check_definition(desk, spec, stored)
    catch_up(desk.tables, stored)
    check_pins(stored, desk.tables)
    result = reopened(desk, spec, stored)
    check_circuit(desk, result.prepared, result.way, stored)
    if result.way.compiled is None:
        return None
    return Opened(stored, result, sizes_of(store, stored))


def state_bytes(store: StoreReader, queries: Iterable[QueryName]) -> int:
    """What is stored of the state of these queries, in all."""
    return sum(run.bytes for query in queries for run in store.run_refs(query))


def sizes_of(store: StoreReader, stored: StoredQuery) -> Mapping[str, Size]:
    """Rows and bytes of all that is stored of a query's state, by the names of its pieces."""
    result: dict[str, Size] = {}
    for run in store.run_refs(stored.query):
        known = result.get(run.arrangement, Size())
        result[run.arrangement] = Size(known.rows + run.rows, known.bytes + run.bytes)
    return result

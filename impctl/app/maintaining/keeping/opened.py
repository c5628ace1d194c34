"""A stored query opened for the choice of its state: its circuit, its sizes, and how it is kept.

Law: nothing of its state is read but how large its runs are.
Out of scope: the choice (`circuits.keeping`), carrying it out (`conversion`).
"""

from __future__ import annotations

from collections.abc import Mapping

from impctl.aliases import AccessId
from impctl.app.capturing.chosen_way import check_circuit, chosen_way, restored_verdict
from impctl.app.capturing.definition import check_definition
from impctl.app.capturing.join_choice import JoinChooser, chooser_of
from impctl.app.capturing.meta import StateMeta
from impctl.app.capturing.moments import stored_moments
from impctl.app.capturing.pins import catch_up, check_pins
from impctl.app.preparing.prepared import PreparedQuery, prepare
from impctl.app.workbench.workbench import Workbench
from impctl.circuits.compile import Compiled
from impctl.circuits.way import Way
from impctl.plan.safety.verdict import Verdict
from impctl.sketch.mode import Mode
from impctl.sketch.partition import RangePartition
from impctl.store.reader import StoreReader
from impctl.store.records import StoredQuery
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
    prepared: PreparedQuery
    verdict: Verdict
    partitions: Mapping[AccessId, RangePartition]
    chooser: JoinChooser
    meta: StateMeta
    way: Way
    sizes: Mapping[str, Size]

    @property
    def compiled(self) -> Compiled:
        """Its circuit; only exact queries are opened."""
        assert self.way.compiled is not None
        return self.way.compiled

    @property
    def bytes(self) -> int:
        """What all its pieces take."""
        return sum(size.bytes for size in self.sizes.values())


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
    prepared = prepare(desk, spec, stored_moments(stored))
    verdict, partitions = restored_verdict(desk.tables, prepared, stored)
    meta = StateMeta.read(stored.query, stored.state_meta)
    chooser = chooser_of(prepared, meta)
    way = chosen_way(prepared, verdict, partitions, chooser, has_answer=meta.answer)
    check_circuit(desk, prepared, way, stored)
    if way.compiled is None:
        return None
    sizes = sizes_of(store, stored)
    return Opened(stored, prepared, verdict, partitions, chooser, meta, way, sizes)


def sizes_of(store: StoreReader, stored: StoredQuery) -> Mapping[str, Size]:
    """Rows and bytes of all that is stored of a query's state, by the names of its pieces."""
    found: dict[str, Size] = {}
    for run in store.run_refs(stored.query):
        known = found.get(run.arrangement, Size())
        found[run.arrangement] = Size(known.rows + run.rows, known.bytes + run.bytes)
    return found

"""What goes into the store and comes out of it; the half that only reads, as a type."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.data.pages import StoredTable
    from impctl.errors import ImpctlError
    from impctl.forecast import History
    from impctl.sketch.partition import RangePartition
    from impctl.sketch.sketch import FragmentSet, Mode
    from impctl.types import AccessId, ColumnName, QueryName, TableName, TableVersion


Run = tuple[str, int, pa.Table]
"""A run of operator state: arrangement, sequence, rows."""


@dataclass(frozen=True, slots=True)
class TablePin:
    """The version of a table that sketch and state stand for."""

    table: TableName
    path: str
    table_id: str
    version: TableVersion
    schema_json: str


@dataclass(frozen=True, slots=True)
class StoredSketch:
    """The sketch of one access."""

    access: AccessId
    table: TableName
    attribute: ColumnName
    partition: RangePartition
    fragments: FragmentSet


@dataclass(frozen=True, slots=True)
class Assumption:
    """A fact about data that the sketch's safety rests on."""

    table: TableName
    column: ColumnName
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class RunRef:
    """A stored run of state, without its rows."""

    arrangement: str
    sequence: int
    rows: int
    bytes: int
    is_file: bool


class RunKind(StrEnum):
    """What a run was, as far as its cost goes; the texts are stored."""

    MAINTAIN = "maintain"
    GROUPED = "grouped"
    """Maintained, over a change that Spark grouped."""
    RECAPTURE = "recapture"


@dataclass(frozen=True, slots=True)
class SideRead:
    """What one run read of a side of a join that lies in files: how many `keys` were asked for, of
    which `hits` had rows, and the rows; all 0 where its filter knew none of the keys.

    Of a piece that is bounded (`buffer_name`) the keys are groups that were filled again.
    """

    side: str
    keys: int = 0
    hits: int = 0
    rows: int = 0
    ms: float = 0.0


def buffer_name(piece: str) -> str:
    """What the buffers of a piece of state are called among the sides that a run read."""
    return f"{piece}.buffer"


@dataclass(frozen=True, slots=True)
class RunParts:
    """Milliseconds of each operator of the circuit, in its order, and what was read from files.

    The reads are part of their operators' times. Sides that were kept are in none.
    """

    times: tuple[float, ...]
    reads: tuple[SideRead, ...] = ()


@dataclass(frozen=True, slots=True)
class RunCost:
    """What a run took, and how much it had to do: what later runs are estimated from.

    `rows` and `bytes` are the change's, of a recapture the tables'. Starting Spark took `start_ms`
    more than `elapsed_ms`, nothing where a session was running; `spark` tells whether the run used
    one. `moved` are the tables whose changes were maintained, in order, where that is known;
    `parts` what of it went where, of a run of the engine alone. `layout` names how the state is
    kept that was carried on, or that a capture made; a run tells nothing of other layouts.
    """

    kind: RunKind
    rows: int
    bytes: int
    elapsed_ms: float
    spark: bool = False
    start_ms: float = 0.0
    moved: tuple[TableName, ...] = ()
    parts: RunParts | None = None
    layout: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What the last choice of state was made by, so that it is made anew only once that moved.

    `rates` are runs a day by the tables that move in one, `pins` what queries say of their state,
    `bytes` what all state took afterwards, `least` what the choice that takes least would. It is
    `settled` but where a query could not be opened or converted, so that the next run tries again.
    """

    budget: int
    rates: Mapping[tuple[TableName, ...], float]
    bytes: int
    pins: Mapping[QueryName, str]
    least: int
    settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What a command did to a query, why, and what it cost; no `cost`, nothing to learn from."""

    action: str
    reason_code: str
    reason: str
    started_at: float
    elapsed_ms: float
    read_ms: float
    engine_ms: float
    commit_ms: float
    changes: int
    added: int
    removed: int
    versions: Mapping[TableName, TableVersion]
    cost: RunCost | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredQuery:
    """All the store knows of a query but its state and history; times in seconds since 1970."""

    query: QueryName
    fingerprint: str
    sql: str
    mode: Mode
    pins: tuple[TablePin, ...]
    sketches: tuple[StoredSketch, ...]
    assumptions: tuple[Assumption, ...]
    state_meta: dict[str, Any]
    generation: int
    captured_at: float
    maintained_at: float

    @property
    def versions(self) -> dict[TableName, TableVersion]:
        return {pin.table: pin.version for pin in self.pins}

    @property
    def partitions(self) -> dict[AccessId, RangePartition]:
        """The ranges of every sketched access."""
        return {sketch.access: sketch.partition for sketch in self.sketches}


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """A commit whose sketches are still there, the versions they stand for, and their basis."""

    generation: int
    versions: Mapping[TableName, TableVersion]
    basis: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCapture:
    """What a capture found; replaces everything the query had but its history.

    `basis` is what tells later whether the sketches of these versions may still be used.
    """

    query: QueryName
    fingerprint: str
    sql: str
    mode: Mode
    pins: tuple[TablePin, ...]
    sketches: tuple[StoredSketch, ...]
    assumptions: tuple[Assumption, ...] = ()
    state_meta: Mapping[str, Any] | None = None
    basis: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class MaintainCommit:
    """What maintaining changed.

    `pins` name every table of the query. Accesses missing in `sketches` keep their sketch; None
    for `state_meta` keeps what is stored. Runs are dropped before others are put; a run put under
    the arrangement and sequence of another replaces it. `basis` is as for a capture, `at` the time,
    in seconds since 1970.
    """

    query: QueryName
    expected_generation: int
    pins: tuple[TablePin, ...]
    record: RunRecord
    sketches: tuple[tuple[AccessId, FragmentSet], ...] = ()
    put_runs: tuple[Run, ...] = ()
    drop_runs: tuple[tuple[str, int], ...] = ()
    state_meta: Mapping[str, Any] | None = None
    basis: Mapping[str, Any] | None = None
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file or folder that nothing refers to; `bytes` is what its removal gives back."""

    path: Path
    bytes: int
    removed: bool = False


@dataclass(frozen=True, slots=True)
class OldVersions:
    """Sketch versions of a query before the latest few, and the bytes of their rows."""

    query: QueryName
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Collected:
    """What `collect` removed (or would remove); files say themselves whether they are gone."""

    versions: tuple[OldVersions, ...] = ()
    partitions: int = 0
    partition_bytes: int = 0
    files: tuple[Leftover, ...] = ()
    refusal: ImpctlError | None = None
    """Why sketch versions and partitions stayed, although files could be removed."""

    def with_files(self, files: tuple[Leftover, ...]) -> Collected:
        """The same, and these files."""
        return replace(self, files=files)


class StoreReader(Protocol):
    """What a store tells; `Store` says more of each."""

    def load(self, query: QueryName) -> StoredQuery | None:
        """The query's newest sketches."""
        ...

    def queries(self) -> tuple[QueryName, ...]:
        """The queries there are."""
        ...

    def history(self, query: QueryName, limit: int = 20) -> tuple[RunRecord, ...]:
        """The latest runs of a query."""
        ...

    def costs(self, query: QueryName) -> tuple[RunCost, ...]:
        """What the query's latest runs cost."""
        ...

    def arrivals(self, tables: Iterable[str], *, is_whole: bool = True) -> dict[TableName, History]:
        """The latest commits of tables, as numbers."""
        ...

    def chosen(self) -> Chosen | None:
        """What the last choice of state was made by."""
        ...

    def kept(
        self, query: QueryName, versions: Mapping[TableName, TableVersion] | None = None
    ) -> tuple[KeptVersion, ...]:
        """The commits whose sketches are still there."""
        ...

    def load_kept(self, query: QueryName, generation: int) -> StoredQuery | None:
        """An older commit's sketches."""
        ...

    def run_refs(self, query: QueryName) -> tuple[RunRef, ...]:
        """The files of the query's state."""
        ...

    def load_runs(
        self, query: QueryName, beginning: str = ""
    ) -> dict[str, list[tuple[int, StoredTable]]]:
        """The query's state, each page of which is looked at before it is used."""
        ...

    def collectable(self, keep: int = ...) -> Collected:
        """What `gc` would remove."""
        ...

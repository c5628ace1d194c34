"""The values that the store writes and reads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
from msgspec import Meta, Struct, field

from impctl.types import AccessId, ColumnName, QueryName, TableName, TableVersion

if TYPE_CHECKING:
    from impctl.errors import ImpctlError
    from impctl.sketch.sketch import MaintenanceMode, RangePartition, RangeSet

Run = tuple[str, int, pa.Table]
Count = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0)]


def plain(value: object) -> object:
    """The standard value of a type that msgspec does not write: numpy's floats, other mappings."""
    match value:
        case float():
            return float(value)
        case Mapping():
            return dict(value)
    raise TypeError(f"cannot write a {type(value).__name__}")


class TablePin(Struct, frozen=True):
    """The version of a table that sketch and state are valid for."""

    table: TableName
    path: str
    table_id: str
    version: TableVersion
    schema_json: str


class StoredSketch(Struct, frozen=True):
    """The sketch of one access."""

    access: AccessId
    table: TableName
    attribute: ColumnName
    partition: RangePartition
    ranges: RangeSet


class Assumption(Struct, frozen=True, array_like=True):
    """A fact about the data that the sketch's safety relies on."""

    table: TableName
    column: ColumnName
    kind: str
    source: str


class RunRef(Struct, frozen=True):
    """A stored run of state, without its rows."""

    arrangement: str
    sequence: int
    rows: int
    bytes: int
    is_file: bool


class RunKind(StrEnum):
    """Kinds of runs by cost; the texts are stored."""

    MAINTAIN = "maintain"
    GROUPED = "grouped"
    """Maintained, with a change that Spark grouped."""
    RECAPTURE = "recapture"


class SideRead(Struct, frozen=True):
    """Reads of a side of a join from files in one run: `keys` requested, `hits` with rows, and the
    rows; all 0 if the filter excluded all keys. For buffers (`buffer_name`), keys are refilled
    groups."""

    side: str
    keys: int = 0
    hits: int = 0
    rows: int = 0
    ms: float = 0.0


def buffer_name(piece: str) -> str:
    """The name of a piece's buffers in `SideRead`."""
    return f"{piece}.buffer"


class RunParts(Struct, frozen=True):
    """Milliseconds per operator of the circuit, in order, and reads from files. The reads are part
    of their operators' times. Stored sides are not listed."""

    times: tuple[float, ...]
    reads: tuple[SideRead, ...] = ()


class RunCost(Struct, frozen=True):
    """The time of a run and its amount of work: the basis of estimates. `rows` and `bytes` are
    those of the change, or of the tables for a recapture. Starting Spark took `start_ms` in
    addition to `elapsed_ms`, 0 if a session was running; `spark`: the run used one. `moved` are the
    tables whose changes were maintained, in order, if known; `parts` details a run of the engine
    alone. A run says nothing about state with another `layout`."""

    kind: RunKind
    rows: int
    bytes: int
    elapsed_ms: float
    spark: bool = False
    start_ms: float = 0.0
    moved: tuple[TableName, ...] = ()
    parts: RunParts | None = None
    layout: str = ""


class StateChoiceBasis(Struct, frozen=True, kw_only=True):
    """The basis of a choice of state, which is repeated only after a change. `rates` are runs per
    day by the tables that change in one, `pins` what queries specify about their state, `bytes` the
    size of all state. Of the last choice that is the size afterwards, and `least` that of the
    smallest choice; `settled` is false if a query could not be opened or converted, so that the
    next run tries again."""

    budget: int
    rates: tuple[tuple[tuple[TableName, ...], float], ...]
    bytes: int
    pins: Mapping[QueryName, str]
    least: int = 0
    settled: bool = False


class RunRecord(Struct, frozen=True, kw_only=True):
    """What a command did to a query, why, and its cost, if estimates can use it."""

    action: str
    reason_code: str
    reason: str
    started_at: float
    elapsed_ms: float
    read_ms: float = 0.0
    engine_ms: float = 0.0
    commit_ms: float = 0.0
    changes: int = 0
    added: int = 0
    removed: int = 0
    versions: Mapping[TableName, TableVersion]
    cost: RunCost | None = None


class StoredQuery(Struct, frozen=True, kw_only=True):
    """A stored query without its state and history; times in seconds since 1970. `generation`
    counts its commits, captures included, so that a writer notices a commit by another one."""

    query: QueryName
    fingerprint: str
    sql: str
    mode: MaintenanceMode
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
        """The ranges of every access with a sketch."""
        return {sketch.access: sketch.partition for sketch in self.sketches}


class KeptVersion(Struct, frozen=True):
    """A commit whose sketches are still stored, their versions, and their basis."""

    generation: int
    versions: Mapping[TableName, TableVersion]
    basis: Mapping[str, Any]


class NewCapture(Struct, frozen=True, kw_only=True):
    """The result of a capture; replaces everything of the query except its history. `basis` decides
    later whether the sketches of these versions are usable."""

    query: QueryName
    fingerprint: str
    sql: str
    mode: MaintenanceMode
    pins: tuple[TablePin, ...]
    sketches: tuple[StoredSketch, ...]
    assumptions: tuple[Assumption, ...] = ()
    state_meta: Mapping[str, Any] | None = None
    basis: Mapping[str, Any] | None = None


class MaintainCommit(Struct, frozen=True):
    """The result of maintenance. `pins` has every table of the query. Accesses that are not in
    `sketches` keep their sketch; with None, `state_meta` stays. Runs are dropped before others are
    put; a run replaces one with the same arrangement and sequence. `basis` is as for a capture,
    `at` the time in seconds since 1970."""

    query: QueryName
    expected_generation: int
    pins: tuple[TablePin, ...]
    record: RunRecord
    sketches: tuple[tuple[AccessId, RangeSet], ...] = ()
    put_runs: tuple[Run, ...] = ()
    drop_runs: tuple[tuple[str, int], ...] = ()
    state_meta: Mapping[str, Any] | None = None
    basis: Mapping[str, Any] | None = None
    at: float = field(default_factory=time.time)


class Leftover(Struct, frozen=True):
    """An unreferenced file or folder; `bytes` is what its removal frees."""

    path: Path
    bytes: int
    removed: bool = False


class OldVersions(Struct, frozen=True):
    """Sketch versions of a query before the latest few, and the bytes of their rows."""

    query: QueryName
    count: int
    bytes: int


class Collected(Struct, frozen=True):
    """What `collect` removed or would remove."""

    versions: tuple[OldVersions, ...] = ()
    partitions: int = 0
    partition_bytes: int = 0
    files: tuple[Leftover, ...] = ()
    refusal: ImpctlError | None = None
    """Why sketch versions and partitions stayed although files could be removed."""

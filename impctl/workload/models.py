"""What a workload file says, as frozen values.

Law: a value here is complete and checked as far as the file alone allows: names refer to declared
tables, paths are absolute or URIs, variables are resolved. Values that may hold secrets stay out
of `repr`. Out of scope: whether tables, columns and SQL exist or make sense (`tables`, `plan`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import date, datetime
from enum import StrEnum
from typing import Final, Literal

from impctl.errors import Location
from impctl.sql.names import FullName, TableNames
from impctl.types import ColumnName, ParameterValue, QueryName, TableName
from impctl.values import dataclass
from impctl.workload.trigger_models import Trigger

CellValue = int | float | str | bool | date | datetime | None
"""A value of a row to insert, as the file types it; the table's column type decides later."""

BoundaryLiteral = int | float | str | date | datetime
"""A boundary as written; decimals wider than a double are written as text."""


class Policy(StrEnum):
    """What `maintain` may do when a query cannot be maintained exactly."""

    AUTO = "auto"
    INCREMENTAL = "incremental"
    STRICT = "strict"
    FULL = "full"


class SketchUse(StrEnum):
    """Whether a query is read through its sketch: where that pays, in any case, or not at all."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class AnsweredBy(StrEnum):
    """Who answers a query: its kept rows, the engine, Spark, or the quickest of those that can."""

    AUTO = "auto"
    STATE = "state"
    ENGINE = "engine"
    SPARK = "spark"


class MaintainMode(StrEnum):
    """In how many steps a query is maintained: one per batch passed, or one for all of them."""

    EAGER = "eager"
    LAZY = "lazy"


class JoinStrategy(StrEnum):
    """Where a join finds partners: kept in an index, read from files or by Spark, or as sizes
    suggest; or that none are looked for."""

    AUTO = "auto"
    INDEX = "index"
    FILES = "files"
    SPARK = "spark"
    SPARK_UNFILTERED = "spark_unfiltered"
    """Without a filter of the keys first, to see what the filter saves."""
    TREE = "tree"
    """Counts and sums go up a tree of the tables, decisions come down: nothing is joined."""


class StateKept(StrEnum):
    """What a query says of its state, whatever the budget."""

    KEEP = "keep"
    """All of it is kept."""
    LEAST = "least"
    """Kept is only what nothing can replace."""


Everything = Literal["all"]
EVERYTHING: Final[Everything] = "all"
"""What `buffer` of a query says that keeps everything."""


class Lineage(StrEnum):
    """Which rows a sketch is kept for: all that the answer stems from, and all rows of recursions;
    those that decide the answer; or of recursions, too, only what the answer stems from."""

    ALL = "all"
    WITNESS = "witness"
    ANSWER = "answer"


class Ship(StrEnum):
    """What of a row's provenance is handed on: its first derivation, or the whole function."""

    LAZY = "lazy"
    EAGER = "eager"


@dataclass(frozen=True, slots=True)
class ProvenanceSpec:
    """Recursion is kept by absorption, in so many `nodes` of decision diagrams at most."""

    ship: Ship = Ship.LAZY
    nodes: int = 5_000_000


class Moves(StrEnum):
    """How often a parameter that sketches follow has another value."""

    DAILY = "daily"
    HOURLY = "hourly"


_FOLLOWED = {
    Moves.DAILY: "current_date",
    Moves.HOURLY: "date_trunc('hour', current_timestamp)",
}
"""Names as of `sql.parameters`."""


@dataclass(frozen=True, slots=True)
class ComingSpec:
    """Changes of a table that are to come; None is not said.

    One `every` so many seconds, of so many `rows`, of which the share `deletes` are deletions; from
    `since` on and before `until`, in seconds since 1970.
    """

    every: float | None
    rows: int | None
    deletes: float
    since: float | None
    until: float | None


@dataclass(frozen=True, slots=True)
class ExpirySpec:
    """Rows of a table are live until `after` microseconds have passed since their `column`."""

    column: ColumnName
    after: int
    location: Location


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A Delta table; `path` is absolute or a URI, `names` what else the SQL calls it.

    `coming` are changes that the file expects: none where it says that the table never changes,
    None where it says nothing. With an `expiry` queries see its live rows alone.
    """

    name: TableName
    path: str
    storage_options: Mapping[str, str] = field(repr=False)
    location: Location
    names: tuple[str, ...] = ()
    ambient: bool = False
    """Whether credentials may come from the surroundings of the process."""
    coming: tuple[ComingSpec, ...] | None = None
    expiry: ExpirySpec | None = None
    clone_of: tuple[str, ...] = ()
    """Absolute paths or URIs of tables whose files the log may name: a shallow clone's."""

    @property
    def never_changes(self) -> bool:
        """Whether the file says so."""
        return self.coming == ()


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A candidate partition: either `boundaries`, or a number of equi-depth `ranges`.

    `is_old_key`: the file uses `fragments`, the old name of that key.
    """

    table: TableName
    column: ColumnName
    boundaries: tuple[BoundaryLiteral, ...] | None
    ranges: int | None
    location: Location
    is_old_key: bool = False


@dataclass(frozen=True, slots=True)
class SqlRun:
    """Characters of a scalar from `offset` on that stand side by side on one line of the file."""

    offset: int
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A stretch of resolved text: literal from `source` on, or the value of a variable there."""

    offset: int
    source: int
    is_literal: bool


@dataclass(frozen=True, slots=True)
class SqlOrigin:
    """Where a SQL text stands in the file; without `runs` only its start is known."""

    start: Location
    runs: tuple[SqlRun, ...]
    pieces: tuple[TextPiece, ...]


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """A SELECT text under a name that queries and other views may read as a table."""

    name: TableName
    sql: str
    location: Location
    sql_origin: SqlOrigin = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySpec:
    """One query; `sketch` names the attribute wanted per table and is empty when impctl chooses.

    `params` are the values of the named parameters in `sql`, for which sketches are captured;
    `moves` are those parameters that sketches follow.
    `buffer` is how many values or rows MIN, MAX and top-k keep per group, `all` of them, or as many
    as is usual (None).
    `lineage` says whether the sketch holds all rows that the answer stems from, and of recursions
    all that derives rows, or witnesses, or of recursions, too, only what the answer stems from;
    `lineage_place` is where the query itself says so, None where it does not.
    `is_sketched` is false where the file says `sketch: none`; `answer` says that the rows of the
    query's answer are kept too. `trigger` says when it is maintained, None where the file does not;
    so does `state` what of its state is kept. `provenance` says that recursion is kept by
    absorption.
    """

    name: QueryName
    sql: str
    sketch: Mapping[TableName, ColumnName]
    policy: Policy
    maintain: MaintainMode
    join: JoinStrategy
    location: Location
    sql_origin: SqlOrigin = field(repr=False)
    params: Mapping[str, ParameterValue] = field(default_factory=dict)
    moves: Mapping[str, Moves] = field(default_factory=dict)
    buffer: int | Everything | None = None
    lineage: Lineage = Lineage.ALL
    lineage_place: Location | None = None
    is_sketched: bool = True
    answer: bool = False
    trigger: Trigger | None = None
    state: StateKept | None = None
    provenance: ProvenanceSpec | None = None

    @property
    def follows(self) -> dict[str, str]:
        """The moment that each parameter which moves is, unless another value is given."""
        return {name: _FOLLOWED[moves] for name, moves in self.moves.items()}


@dataclass(frozen=True, slots=True)
class InsertSpec:
    """A batch of new rows: written out (`rows`), or in a file beside the workload (`file`)."""

    name: str
    table: TableName
    rows: tuple[Mapping[ColumnName, CellValue], ...] | None
    file: str | None
    location: Location


@dataclass(frozen=True, slots=True)
class DeleteSpec:
    """A batch that deletes the rows for which `where` is true."""

    name: str
    table: TableName
    where: str
    location: Location


@dataclass(frozen=True, slots=True)
class ChangeSpec:
    """A batch that sets columns to SQL expressions, on all rows or where `where` is true."""

    name: str
    table: TableName
    assignments: Mapping[ColumnName, str]
    where: str | None
    location: Location
    places: Mapping[ColumnName, Location]
    """Where the value of each column stands."""


UpdateSpec = InsertSpec | DeleteSpec | ChangeSpec
"""One update batch of the workload; `apply` commits each as a table version of its own."""


@dataclass(frozen=True, slots=True)
class SparkSpec:
    """Settings of the Spark session; `master` is None where the file does not say."""

    master: str | None
    conf: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    """What the state of all queries may take: bytes on `disk`; None is without bounds.

    `memory` is what a process may take, as written: a size, or a share of the machine's such as
    `25%`.
    """

    disk: int | None = None
    memory: str | None = None


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """How far WITH RECURSIVE of UNION may go: rounds in one go, and rows derived."""

    rounds: int = 100_000
    rows: int = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A whole workload file; mappings keep the order of the file."""

    name: str
    file: str
    tables: Mapping[TableName, TableSpec]
    names: TableNames
    views: Mapping[FullName, ViewSpec]
    partitions: tuple[PartitionSpec, ...]
    queries: Mapping[QueryName, QuerySpec]
    updates: tuple[UpdateSpec, ...]
    store: str
    spark: SparkSpec
    budget: BudgetSpec = BudgetSpec()
    limits: LimitSpec = LimitSpec()

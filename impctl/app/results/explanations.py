"""Frozen records of what could be done for a query, and why: `check` and `explain`.

Law: as for `app.results.results`, whose documents they are part of; nothing was run or stored to
say it.
Out of scope: what was done (`app.results.results`).
"""

from __future__ import annotations

from impctl.errors import Location
from impctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedReading:
    """What a sketch of an attribute is expected to leave to read of a table, from a sample.

    `files` lie between `files_low` and `files_high` nine times out of ten, as far as a sample of
    files can tell. `upkeep` is the state that is kept for the sketch, in bytes, which every run of
    `maintain` reads. `is_measured`: by a capture that stored nothing, not from a sample.
    """

    files: int
    files_low: int
    files_high: int
    files_total: int
    rows: int
    bytes: int
    upkeep: int = 0
    is_measured: bool = False


@dataclass(frozen=True, slots=True)
class CandidateEntry:
    """An attribute looked at for a sketch: safe or not, chosen or not, and why.

    `expected` is None where nothing was to choose, or nothing could be estimated. `occurrence` is
    the alias, or else the number, of one of several places where the query reads the table.
    """

    table: str
    attribute: str
    safe: bool
    chosen: bool
    reason: str
    expected: ExpectedReading | None = None
    occurrence: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Whether a query can have a sketch; `mode` is how it would be maintained.

    `hint` says what to do about a query that can have none, `place` where in the file that stands
    which is in the way. `answer` says whether its answer would be kept, None where it is not to be.
    `answered` says who answers it, None where that cannot be told.
    """

    query: str
    supported: bool
    mode: str | None
    reason: str
    candidates: tuple[CandidateEntry, ...] = ()
    hint: str | None = None
    answer: AnswerEntry | None = None
    place: Location | None = None
    answered: AnsweredEntry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEntry:
    """A line of the plan tree; `how` an operator is maintained, why so, and where it stands.

    `state_bytes` is what the stored state keeps for it (None where nothing is stored), `pushed`
    what is done early at a scan or on a change: columns, conditions, the sketch's ranges, files.
    """

    depth: int
    operator: str
    detail: str
    how: str = ""
    why: str = ""
    place: Location | None = None
    state_bytes: int | None = None
    pushed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinSideEntry:
    """How one side of a join finds partners: `index` keeps its rows, `files` and `spark` read them;
    *rebuilt* (`mode`) of all rows where no key narrows these.

    `rows` and `bytes` are the most that the index can come to, None where nobody knows.
    """

    side: str
    tables: tuple[str, ...]
    strategy: str
    mode: str
    reason: str
    rows: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class GroupsEntry:
    """The groups of a grouping, or of a DISTINCT, over these tables: *kept*, or *read* from files
    when they change, or *rebuilt* of all rows where no key narrows these; and why. There are no
    tables where the rows below it are computed."""

    name: str
    tables: tuple[str, ...]
    mode: str
    reason: str


@dataclass(frozen=True, slots=True)
class BuffersEntry:
    """First rows over these tables, or values of MIN and MAX: all *kept*, or *bounded* to the best
    `buffer` of each group; and why. `chosen` says that a budget or `state: least` bounds them,
    `state_bytes` what is stored of them, None where the query is not captured as it stands."""

    name: str
    tables: tuple[str, ...]
    mode: str
    buffer: int | None
    chosen: bool
    reason: str
    state_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TreeNodeEntry:
    """A node of a join tree: the accesses of its `bag` (none of a virtual root) and what it keeps.

    `key` is what it shares with its `parent` (a place among the nodes) over an `edge` of that kind;
    the root's are the group columns. Its tuples differ in `kept`, `calls` are added up over them.
    `ranges` has each sketched column, and whether its fragments are `counted` or told `by column`.
    `bytes` are those of its stored state, None where it is not captured as it stands.
    The rows of a `probed` bag are found by look-ups over its tables' rows.
    """

    bag: tuple[str, ...]
    parent: int | None
    edge: str
    key: tuple[str, ...]
    kept: tuple[str, ...]
    calls: tuple[str, ...]
    ranges: tuple[tuple[str, str], ...]
    probed: bool
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """Joins that are `used` as a tree, that could be one, or why they cannot.

    `mode` is `ring` where counts and sums decide, `bits` where nothing does; `height` counts edges.
    `nodes` has the root first; `drawn` are they as lines. `joined` are the rows that a changed row
    is joined to, `touched` the tuples of the tree that it touches, both estimated in the mean, as
    are milliseconds of a step of a thousand changed rows and the bytes of state, both ways.
    """

    used: bool
    reason: str
    place: Location | None = None
    mode: str = ""
    height: int = 0
    nodes: tuple[TreeNodeEntry, ...] = ()
    drawn: tuple[str, ...] = ()
    joined: float | None = None
    touched: float | None = None
    index_ms: float | None = None
    tree_ms: float | None = None
    index_bytes: int | None = None
    tree_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerEntry:
    """Whether the rows of a query's answer are `kept` with its state; `reason` says why not.

    A row takes some `row_bytes`, none where a join tree tells it; there are `most_rows` but for
    ties, None without a LIMIT. `state_bytes` is what is stored of them, None where the query is not
    captured as it stands.
    """

    kept: bool
    reason: str
    columns: tuple[str, ...] = ()
    row_bytes: int = 0
    most_rows: int | None = None
    state_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class AnsweredEntry:
    """Who answers a query if nobody is asked for: `state`, `engine` or `spark`, and why.

    What the engine and Spark are estimated to take, in milliseconds; None where one cannot.
    """

    by: str
    reason: str
    engine_ms: int | None = None
    spark_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainResult:
    """Whether a query is sketchable and maintainable, and what stands in the way.

    `state_bytes` is all that is stored for it, with the counts of fragments that no operator owns;
    None where it was not captured as it stands now. `answer` is set where it is to be kept,
    `provenance` where recursion is to be kept by absorption: how it is, or `given_up`. `answered`
    says who answers it.
    """

    query: str
    mode: str
    reason: str
    policy: str
    plan: tuple[PlanEntry, ...]
    attributes: tuple[CandidateEntry, ...]
    joins: tuple[JoinSideEntry, ...] = ()
    groups: tuple[GroupsEntry, ...] = ()
    buffers: tuple[BuffersEntry, ...] = ()
    trees: tuple[TreeEntry, ...] = ()
    state_bytes: int | None = None
    answer: AnswerEntry | None = None
    provenance: str | None = None
    answered: AnsweredEntry | None = None

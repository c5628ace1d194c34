"""Flows between operators of a circuit, and where a join finds partners of a changed row.

A grouping's groups may be read instead of kept where the rows below can be read again and determine
the output alone (`Aggregate.is_deterministic`): then a change retracts exactly what was output
before. Partial aggregates need kept groups, so a circuit whose groups are read has no chain and is
stepped by rows. Source: docs/decisions/0101.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.data.schema import INTEGER, Kind, SqlType
from impctl.errors import ImpctlError
from impctl.expr.evaluate import Blocker, find_blocker, find_condition_blocker
from impctl.expr.nodes import ColumnRef, Expr, Span
from impctl.expr.types import type_of
from impctl.plan import nodes as p
from impctl.plan.explain import expr_text, shortened
from impctl.types import AccessId, AttributeId, ColumnName, TableName

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.engine.batch import Batch
    from impctl.engine.linear import TableScan as ScanOperator
    from impctl.engine.operator import Operator

Column = tuple[AttributeId, SqlType]

_LONGEST = 60  # Characters of an expression shown in a message


class BlockedError(ImpctlError):
    """The plan has a part the engine does not maintain; carries the reason and its place in the
    SQL. `plan_maintenance` turns it into touch mode or recapture."""

    def __init__(self, reason: str, span: Span | None) -> None:
        super().__init__(reason, code="not_incremental")
        self.span = span


class Source(Struct, frozen=True):
    """Where changes of one table access enter the circuit, restricted to rows that meet
    `conditions`."""

    access: AccessId
    table: TableName
    scan: ScanOperator
    conditions: tuple[Expr, ...] = ()

    def inserted(self, rows: pa.Table) -> Batch:
        """The rows of the table as an insertion."""
        return self.scan.read(rows, np.ones(len(rows), dtype=np.int64))


class Flow(Struct, frozen=True):
    """The output of an operator, or of source s as wire -1 - s: its columns, and its accesses in
    the order of their tags. `approximate` columns have an error bound, which for
    `integral` ones is zero unless magnitudes add up to 2^53. `rows` yields the same rows from the
    tables, if anything does; in Spark too if it `is_plain`: only selections, projections and inner
    joins. `carried` columns pass through everything above a join tree; no plan node knows them."""

    wire: int
    columns: tuple[Column, ...]
    accesses: tuple[AccessId, ...]
    approximate: frozenset[AttributeId] = frozenset()
    rows: p.Plan | None = None
    integral: frozenset[AttributeId] = frozenset()
    carried: tuple[Column, ...] = ()
    is_plain: bool = True

    @property
    def ids(self) -> frozenset[AttributeId]:
        return frozenset(name for name, _ in self.columns)

    def refs(self) -> list[tuple[AttributeId, Expr]]:
        return [(name, ColumnRef(name, kind)) for name, kind in self.columns]


def over_rows(node: p.Join | p.SetOperation, left: Flow, right: Flow) -> p.Plan | None:
    """The node over the plans of its two inputs; None if one of them has no plan."""
    if left.rows is None or right.rows is None:
        return None
    return replace(node, left=left.rows, right=right.rows)


def known_type(sql_type: SqlType | None, span: Span | None, subject: str = "a value") -> SqlType:
    """Return the type of `what`; BlockedError if the engine does not support it."""
    if sql_type is None or sql_type.kind is Kind.OTHER:
        raise BlockedError(f"{subject} has a type that the engine does not support", span)
    return sql_type


def known_type_of(expr: Expr, span: Span | None) -> SqlType:
    """Return the type of an expression; BlockedError if the engine does not support it."""
    return known_type(type_of(expr), expr.span or span, _shown(expr))


def typed(attributes: Iterable[p.Attribute], span: Span | None) -> tuple[Column, ...]:
    return tuple(
        (attribute.id, known_type(attribute.type, span, f"`{attribute.name}`"))
        for attribute in attributes
    )


def _shown(expr: Expr) -> str:
    return f"`{shortened(expr_text(expr), _LONGEST)}`"


def check(expr: Expr, span: Span | None) -> None:
    """BlockedError if the engine cannot compute the expression."""
    _raise(find_blocker(expr), span)


def check_condition(expr: Expr, span: Span | None) -> None:
    """BlockedError if the engine cannot evaluate the expression as a condition."""
    _raise(find_condition_blocker(expr), span)


def _raise(blocker: Blocker | None, span: Span | None) -> None:
    if blocker is not None:
        reason = blocker.reason.replace("an expression", _shown(blocker.part), 1)
        raise BlockedError(reason, blocker.part.span or span)


def refuse_approximate(flow: Flow, use: str, span: Span | None) -> None:
    """BlockedError if a column of the flow is not exact."""
    if flow.approximate & flow.ids:
        raise BlockedError(f"the engine does not support {use} a sum of doubles", span)


RANGE_COLUMN: ColumnName = "__impctl_fragment"
"""The column of a table's rows that holds their range id."""


class Readable(Struct, frozen=True):
    """Rows that can be read again: `columns`, then the range id of each access, from `plan`. `name`
    is that of the side or join; `keys` are the columns a side is looked up by. `rows` is the plan
    without range ids and may yield more columns. Above a grouping, another join or a set operation,
    where a row may have many ranges per access or none, Spark is not used and `plan` is `rows`."""

    name: str
    rows: p.Plan
    plan: p.Plan
    columns: tuple[Column, ...]
    keys: tuple[AttributeId, ...]
    accesses: tuple[AccessId, ...]

    def reads(self, access: AccessId) -> bool:
        return any(scan.access == access for scan in self.rows.scans)


class DistantJoin(Struct, frozen=True):
    """An operator with inputs that are not kept, its output rows, and the rows of such an input.
    `joined` is None if the operator finds its pairs itself while it is filled."""

    operator: Operator
    joined: Readable | None
    sides: tuple[Readable, ...]


def range_attribute(access: AccessId) -> p.Attribute:
    return p.Attribute(f"impctl/fragment/{access}", RANGE_COLUMN, INTEGER, nullable=False)


def with_range_ids(plan: p.Plan, accesses: Collection[AccessId]) -> p.Plan:
    """The plan with the range ids of these accesses added at their scans."""
    match plan:
        case p.Scan():
            if plan.access not in accesses:
                return plan
            return replace(plan, attributes=(*plan.attributes, range_attribute(plan.access)))
        case p.Project():
            child = with_range_ids(plan.child, accesses)
            passed = tuple(
                p.ComputedColumn(attribute, attribute.ref())
                for attribute in map(range_attribute, accesses)
                if attribute in child.attributes
            )
            return replace(plan, child=child, outputs=(*plan.outputs, *passed))
        case p.Select() | p.Sort():
            return replace(plan, child=with_range_ids(plan.child, accesses))
        case p.Join():
            left = with_range_ids(plan.left, accesses)
            return replace(plan, left=left, right=with_range_ids(plan.right, accesses))
        case _:
            raise AssertionError(f"no range passes {type(plan).__name__} below a grouping")


def read_by_engine(
    flow: Flow, name: str, columns: tuple[Column, ...], keys: tuple[AttributeId, ...]
) -> Readable:
    """The rows of a readable flow, with these columns, looked up by these keys."""
    assert flow.rows is not None, "only what can be read is asked for"
    if flow.is_plain:
        return readable(name, flow.rows, columns, keys, flow.accesses)
    return Readable(name, flow.rows, flow.rows, columns, keys, flow.accesses)


def readable(
    name: str,
    plan: p.Plan,
    columns: tuple[Column, ...],
    keys: tuple[AttributeId, ...],
    accesses: tuple[AccessId, ...],
) -> Readable:
    """The rows of `plan` with exactly these columns."""
    attributes = [p.Attribute(key, key, kind) for key, kind in columns]
    attributes += map(range_attribute, accesses)
    outputs = p.ComputedColumn.unchanged(attributes)
    chosen = p.Project(with_range_ids(plan, accesses), outputs)
    return Readable(name, plan, chosen, columns, keys, accesses)


def tables_of(plan: p.Plan | None) -> tuple[TableName, ...]:
    """The tables that a plan scans, each once; none without a plan."""
    return () if plan is None else tuple(dict.fromkeys(scan.table for scan in plan.scans))


# Where a join finds the partners of a changed row. A choice changes costs and state, never a
# sketch; it is made at capture and stored with the state, which fits only that circuit. `index`
# keeps the side's rows. `files` and `spark` keep at most a filter of its keys, and partners are
# read from table files by the engine, or by Spark. Files need a side that can be read again from
# the tables; Spark needs that of both sides, since it joins them at capture. A grouping keeps its
# groups (`index`), or the rows of changed groups are read from files.

LARGEST_INDEX = 4 << 30  # Bytes of one side that is kept by default: what a small machine can map

_ROOM = 2  # How many times its estimate a side may take and still be kept
_CODE_AND_WEIGHT = 16
_RANGE_ID = 4
_WIDTHS = {Kind.BOOLEAN: 1, Kind.STRING: 24, Kind.BINARY: 24, Kind.DECIMAL: 16}
_WIDTH = 8

_UNCOUNTED = "kept, because its size is unknown: a table's log does not count rows"
_NOT_IN_SPARK = "the other side is computed, so Spark cannot join them"
COMPUTED = "its rows are computed, so they cannot be read from tables"
_BY_SCALARS = (
    "a scalar value selects its rows; when the value changes, the rows that enter or leave are read"
)
_WHOLE = "kept unless it does not fit the budget, because no key limits what would be read instead"


class Strategy(StrEnum):
    """How join partners of changed rows are found on one side."""

    INDEX = "index"
    FILES = "files"
    SPARK = "spark"


class SideFacts(Struct, frozen=True):
    """One side of a join: its name in the circuit, the tables below it, the bytes of a row.
    `readers` can read its rows by key. Or a grouping and the rows below it; `pinned` says why its
    groups must be kept, if they must; `is_passed` that a pass of partial aggregates may fill them
    if kept. `is_whole`: no key narrows the read, so it reads everything."""

    name: str
    tables: tuple[TableName, ...]
    row_bytes: int
    readers: tuple[Strategy, ...] = ()
    is_grouping: bool = False
    pinned: str = ""
    is_passed: bool = False
    is_whole: bool = False
    by_scalars: bool = False  # Whether its rows are selected by scalars, and so need not be kept


class SideChoice(Struct, frozen=True):
    """The choice for a side or grouping, and why; `rows` and `bytes` are upper estimates. `readers`
    could read its rows; `is_whole`: every read reads all rows, since no key narrows it."""

    side: str
    tables: tuple[TableName, ...]
    strategy: Strategy
    reason: str
    rows: int | None = None
    bytes: int | None = None
    readers: tuple[Strategy, ...] = ()
    room: int = 0  # Bytes up to which its rows are kept after all, once their real size is known
    is_whole: bool = False

    @property
    def mode(self) -> str:
        """The mode of its rows in the words shown to users: kept, read or rebuilt."""
        if self.strategy is Strategy.INDEX:
            return "kept"
        return "rebuilt" if self.is_whole else "read"


class Chooser(Protocol):
    @property
    def has_filter(self) -> bool: ...

    def choose(self, facts: SideFacts) -> SideChoice: ...


class StoredChoices(Struct, frozen=True):
    """Stored choices: Spark reads the rows of `distant` sides, the engine those of sides
    `from_files`, others are kept. `reasons` are by side, if stored. A circuit that `is_to_fill`
    keeps the groups that a pass may fill; they are read from then on. It keeps no rows selected by
    scalars, even if an older circuit did."""

    distant: Collection[str] = ()
    has_filter: bool = True
    from_files: Collection[str] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    is_to_fill: bool = False

    def choose(self, facts: SideFacts) -> SideChoice:
        strategy = Strategy.INDEX
        is_filled = self.is_to_fill and facts.is_passed
        for names, reader in ((self.distant, Strategy.SPARK), (self.from_files, Strategy.FILES)):
            if facts.name in names and reader in facts.readers and not is_filled:
                strategy = reader
        if facts.by_scalars and self.is_to_fill:
            strategy = Strategy.FILES
        reason = self.reasons.get(facts.name, facts.pinned or "as captured")
        return SideChoice(facts.name, facts.tables, strategy, reason)


class ChooseBySize(Struct, frozen=True):
    """The strategy that the workload requests; by default a side is kept if it is small enough, or
    if its size is unknown."""

    requested: Strategy | None
    rows_of: Callable[[TableName], int | None]
    has_filter: bool = True
    largest: int = LARGEST_INDEX
    from_files: int | None = None  # Bytes above which a side is read from files; None disables this
    fits: int | None = None
    """Bytes that may take more memory to build than is available; None is unlimited."""
    is_least: bool = False
    """Whether groups are read, too, unless a pass over their one table fills them, and sides that
    no key narrows are read whole."""

    def choose(self, facts: SideFacts) -> SideChoice:
        """A side over several tables is assumed to have as many rows as the largest one."""
        counts = [self.rows_of(table) for table in facts.tables]
        rows = None if None in counts else max((count or 0 for count in counts), default=0)
        size = None if rows is None else rows * facts.row_bytes
        strategy, reason = self._decided(facts, size)
        is_open = self.requested is None and strategy is Strategy.FILES
        room = _ROOM * (self.from_files or 0) if is_open else 0
        room = room if self.fits is None else min(room, self.fits)
        return SideChoice(facts.name, facts.tables, strategy, reason, rows, size, room=room)

    def _decided(self, facts: SideFacts, size: int | None) -> tuple[Strategy, str]:
        if facts.by_scalars and self.requested is not Strategy.INDEX:
            return Strategy.FILES, _BY_SCALARS
        if not facts.readers:
            return Strategy.INDEX, facts.pinned or COMPUTED
        if facts.is_grouping and self.is_least and not facts.is_passed:
            return Strategy.FILES, "requested"
        if facts.is_grouping:
            return Strategy.INDEX, "groups are kept unless they do not fit the budget"
        if facts.is_whole and not self.is_least:
            return Strategy.INDEX, _WHOLE
        if self.requested is not None:
            if self.requested is Strategy.INDEX or self.requested in facts.readers:
                return self.requested, "requested"
            return Strategy.INDEX, _NOT_IN_SPARK
        if self.from_files is not None and size is not None and size > self.from_files:
            return Strategy.FILES, "it may take a large part of the budget"
        if self.fits is not None and size is not None and size > self.fits:
            return Strategy.FILES, "building it may need more memory than is available"
        if Strategy.SPARK not in facts.readers:
            return Strategy.INDEX, _NOT_IN_SPARK
        if size is None:
            return Strategy.INDEX, _UNCOUNTED
        if size > self.largest:
            return Strategy.SPARK, "too large to keep"
        return Strategy.INDEX, "small enough to keep"


def row_bytes(columns: Collection[Column], accesses: int) -> int:
    """Bytes that a row of these columns takes in an index; text counts as short."""
    values = sum(_WIDTHS.get(kind.kind, _WIDTH) for _, kind in columns)
    return values + _CODE_AND_WEIGHT + _RANGE_ID * accesses

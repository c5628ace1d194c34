"""A fixpoint that keeps of each row the Boolean function of table rows that derive it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from impctl.data.keys import distinct_values, key_codes
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Ints, Vector, slice_positions
from impctl.engine.batch import Batch, consolidated, disagreement, stacked_batches, stacked_or_empty
from impctl.engine.fixpoint.frontier import DerivationTags, Recursion, TagsAtEnd, apart_in_memory
from impctl.engine.fixpoint.rows import (
    NUMBER,
    RowNumbers,
    RowsByNumber,
    TouchedNumbers,
    TouchedRows,
    only_columns,
)
from impctl.engine.operator import LIMITS, Keeper, Limits
from impctl.engine.tags import no_ranges
from impctl.engine.trace import RowIndex
from impctl.errors import EvaluationError, UsageError

if TYPE_CHECKING:
    from impctl.engine.circuit import Circuit
    from impctl.types import AttributeId


# Derivations by numbers; stored ones stay in arrays until needed. Rows of a fixpoint have even
# numbers, leaves odd ones. Law: the rows that stored derivations give are found in rounds, and for
# each row one derivation from rows of earlier rounds is chosen: following chosen ones ends. A
# derivation that was returned is no longer asleep; the choices stay known. Cost: a start sorts the
# derivations, with a round per level; afterwards the requested ones, plus a binary search.


class Grounded(Struct, frozen=True):
    """One derivation: the derived row, and the fixpoint's rows and leaves it uses, as the caller's
    numbers."""

    head: int
    bodies: tuple[int, ...]
    leaves: tuple[int, ...]


def grounded(numbers: Ints) -> list[Grounded]:
    """Derivations of an array of shape (derivations, 1 + numbers of one): the head first, then the
    rows and leaves it uses, negative for none."""
    result = []
    for head, *parts in numbers.tolist():
        used = [part for part in parts if part >= 0]
        bodies = tuple(part for part in used if not part % 2)
        result.append(Grounded(head, bodies, tuple(part for part in used if part % 2)))
    return result


class LazyDerivations:
    """Lazy derivations in an array of shape (derivations, 1 + numbers of one), as for
    `grounded`."""

    def __init__(self, numbers: Ints) -> None:
        self._numbers = numbers
        self._is_unused = np.ones(len(numbers), dtype=np.bool_)
        heads, parts = numbers[:, 0], numbers[:, 1:]
        self._of_head = _ValuePlaces(heads)
        owners, columns = (parts >= 0).nonzero()
        self._of_part = _ValuePlaces(parts[owners, columns], owners)
        self._rows = distinct_values(self._of_head.values)
        self._chosen = np.full(len(self._rows), -1, dtype=np.int64)
        """Which derivation is chosen for each row, -1 for none."""
        waits_for = ((parts >= 0) & (parts % 2 == 0)).sum(axis=1)
        self._choose(np.searchsorted(self._rows, heads), waits_for)

    def _choose(self, positions: Ints, waits_for: Ints) -> None:
        """Choose round by round; `positions` are those of the heads, `waits_for` the number of rows
        that each derivation still waits for."""
        ready = (waits_for == 0).nonzero()[0]
        while len(ready):
            ready = ready[self._chosen[positions[ready]] < 0]
            heads, first = np.unique(positions[ready], return_index=True)
            self._chosen[heads] = ready[first]
            used, counts = np.unique(self._of_part.of(self._rows[heads]), return_counts=True)
            waits_for[used] -= counts
            ready = used[waits_for[used] == 0]

    def rows(self) -> Ints:
        return self._rows[self._chosen >= 0]

    def chosen(self, row: int) -> Grounded:
        position = int(np.searchsorted(self._rows, row))
        (result,) = grounded(self._numbers[self._chosen[position]][None])
        return result

    def made_of(self, leaf: int) -> set[int]:
        """The rows whose chosen derivations use a leaf, directly or not. Cost: these rows."""
        result, requested = set[int](), np.array([leaf], dtype=np.int64)
        while len(requested):
            used = self._of_part.of(requested)
            heads = self._numbers[used, 0]
            is_chosen = self._chosen[np.searchsorted(self._rows, heads)] == used
            new = set(heads[is_chosen].tolist()) - result
            result |= new
            requested = np.array(sorted(new), dtype=np.int64)
        return result

    def take_of_head(self, row: int) -> list[Grounded]:
        return self._take(self._of_head.of(np.array([row])))

    def take_of_part(self, number: int) -> list[Grounded]:
        """Hand out the derivations that use a row or a leaf."""
        return self._take(np.unique(self._of_part.of(np.array([number]))))

    def _take(self, positions: Ints) -> list[Grounded]:
        unused = positions[self._is_unused[positions]]
        self._is_unused[unused] = False
        return grounded(self._numbers[unused])

    def unused(self) -> Iterator[Grounded]:
        yield from grounded(self._numbers[self._is_unused])

    def __len__(self) -> int:
        return int(self._is_unused.sum())


class _ValuePlaces:
    """Positions of values, sorted; `owners` are reported instead of positions."""

    def __init__(self, values: Ints, owners: Ints | None = None) -> None:
        order = np.argsort(values, kind="stable")
        self.values: Ints = values[order]
        self._owners: Ints = order if owners is None else owners[order]

    def of(self, requested: Ints) -> Ints:
        """The owners of these values, each as often as it has the value."""
        first = np.searchsorted(self.values, requested, "left")
        last = np.searchsorted(self.values, requested, "right")
        result: Ints = self._owners[slice_positions(first, last)[0]]
        return result


# The fewest variables that make a monotone decision diagram true. Cost: its nodes, each visited
# once.

_Fewest = tuple[int, tuple[int, ...] | None]
"""The number of variables, and which; None where nothing makes it true."""


def fewest_true(function: Any) -> tuple[int, ...] | None:
    """The fewest variables that make a diagram of `oxidd` true; None where it is false."""
    best: dict[Any, _Fewest] = {}
    left = [function]
    while left:
        node = left[-1]
        if node in best:
            left.pop()
            continue
        parts = node.cofactors()
        if parts is None:
            best[node] = (0, ()) if node.satisfiable() else (0, None)
            continue
        missing = [part for part in parts if part not in best]
        left += missing
        if not missing:
            best[node] = _better(node, *(best[part] for part in parts))
    return best[function][1]


def _better(node: Any, high: _Fewest, low: _Fewest) -> _Fewest:
    """The cheaper way to make a node true: with its own variable, or without."""
    if low[1] is not None and (high[1] is None or low[0] <= high[0] + 1):
        return low
    if high[1] is None:
        return 0, None
    return high[0] + 1, (*high[1], node.node_var())


# Derivations of a fixpoint's rows as rows: from a head to each of its bodies. Law: every derivation
# whose bodies are all in the fixpoint has a row per body, with the numbers of head and body, or one
# row with the body `NOTHING`. Only its first row carries the derivation's ranges, so they count
# once. A step's changes are emitted at its end, when every head has its number. Cost: the inserted
# and deleted derivations, sorted once.

HEAD, BODY = "impctl/head", "impctl/body"  # Columns of a derivation row, both numbers
NOTHING = 0  # The body of a derivation from nothing: no row's number
_SLOT = "impctl/slot"


class HeadsAndBodies(TagsAtEnd):
    """Of derivations with heads of `columns`, and in the columns `bodies` the bodies' numbers."""

    def __init__(
        self,
        accesses: tuple[int, int],
        columns: Sequence[AttributeId],
        bodies: Sequence[AttributeId],
    ) -> None:
        super().__init__(accesses)
        self._columns = tuple(columns)
        self._bodies = tuple(bodies)

    def end(self, touched: TouchedRows) -> None:
        assert isinstance(touched, TouchedNumbers), "only rows with numbers have heads and bodies"
        parts = [self._numbered(touched, batch) for batch in self.taken()]
        if not parts:
            return
        noted = consolidated(stacked_batches(parts))
        if not len(noted):
            return
        heads = touched.numbers[noted.columns[_SLOT].values]
        if not bool(heads.all()):
            raise disagreement(
                "A derivation in WITH RECURSIVE belongs to a row that does not exist"
            )
        for index, name in enumerate(self._bodies or ("",)):
            bodies = noted.columns[name].values if self._bodies else np.zeros_like(heads)
            columns = {HEAD: Vector(LONG, heads), BODY: Vector(LONG, bodies)}
            if index == 0:
                self.keep(Batch(columns, noted.weights, noted.tags))
                continue
            tags = tuple(no_ranges(len(noted)) for _ in noted.tags)
            self.keep(Batch(columns, noted.weights, tags).keep(bodies != NOTHING))

    def _numbered(self, touched: TouchedRows, batch: Batch) -> Batch:
        heads = [batch.columns[name] for name in self._columns]
        columns = {_SLOT: Vector(LONG, touched.slots_for(heads, len(batch)))}
        nothing: Ints = np.full(len(batch), NOTHING, dtype=np.int64)
        for name in self._bodies:
            columns[name] = batch.columns.get(name, Vector(LONG, nothing))
        return Batch(columns, batch.weights, batch.tags)


# Absorption provenance: for each row of a fixpoint, the function of table rows that it depends on.
# Identity: P(t) is the OR over the derivations of t of the AND of their bodies' functions and of
# their leaves, a variable each; t is in T if and only if P(t) is not false. Functions are monotone
# decision diagrams, which absorb redundant derivations. Deleted table rows are variables set to
# false (universal quantification, which is the same for monotone functions), so cycles never keep a
# row (Liu et al., *Recursive Computation of Regions and Connectivity in Networks*, 2009). The rows
# that depend on each variable are indexed. EAGER ships the whole function whenever it changes. LAZY
# ships a row's first derivation and keeps the others. If it becomes false, the next is used; a row
# without any is deleted. T is the same; a lazy function may miss derivations, but never has a wrong
# one. State: derivations, functions, the index. Cost: eager, the changes of functions, which may be
# exponentially large; lazy, the rows whose function contains a deleted variable. After a restart,
# lazy functions are computed on request, with those of the rows they use. The caller distinguishes
# leaves: each copy of a table row is a leaf. A reinserted leaf has new derivations. The default,
# ranks (`engine.fixpoint.fixpoint`), cannot tell which table rows a row needs.

NODES = 5_000_000  # Maximal nodes of decision diagrams; some 100 MB
PROVENANCE_TOO_LARGE = "provenance_too_large"  # The error code where there are more
EXTRA_MISSING = "extra_missing"
"""The error code where the package of decision diagrams is not installed."""
PACKAGE = "oxidd"
_CACHE = 1 << 20  # Cached results of operations on functions

_Function = Any


class Shipping(StrEnum):
    LAZY = "lazy"
    EAGER = "eager"


class Absorbs(Struct, frozen=True):
    """How functions are handed on, and the limit of nodes."""

    ship: Shipping = Shipping.LAZY
    nodes: int = NODES


class _After(Struct, frozen=True):
    """The new functions of some rows, and the leaves that these may mention."""

    functions: dict[int, _Function]
    mentions: dict[int, set[int]]

    @property
    def rows_gone(self) -> set[int]:
        return {row for row, function in self.functions.items() if not function.satisfiable()}


class Absorption:
    def __init__(self, ship: Shipping = Shipping.LAZY, nodes: int = NODES) -> None:
        """UsageError where the package for decision diagrams is not installed."""
        self._ship = ship
        self._nodes = nodes
        self._manager = _manager(nodes)
        self._functions: dict[int, _Function] = {}
        self._asleep: LazyDerivations | None = None
        self._sleepers: set[int] = set()
        """Rows whose function has not been needed since they were restored. They live by chosen
        derivations, of leaves and rows that had all their functions then."""
        self._derivations: dict[int, dict[Grounded, None]] = {}
        self._used_by: dict[int, dict[Grounded, None]] = {}
        """The derivations that have a row among their bodies."""
        self._of_leaf: dict[int, dict[Grounded, None]] = {}
        self._variables: dict[int, int] = {}
        self._leaf_of: dict[int, int] = {}
        self._free: list[int] = []
        self._mentions: dict[int, set[int]] = {}
        """The leaves that the function of a row may mention."""
        self._mentioned_by: dict[int, set[int]] = {}  # The rows whose function may mention a leaf

    def take_up(self, numbers: Ints) -> None:
        """Restore the derivations of an earlier instance, before any others: shape (derivations, 1
        + numbers of one), as for `grounded`. Lazy functions are made when they are needed."""
        if self._ship is Shipping.EAGER:
            self.step((), grounded(numbers))
            return
        self._asleep = LazyDerivations(numbers)
        self._sleepers = set(self._asleep.rows().tolist())

    @property
    def rows(self) -> Collection[int]:
        return self._functions.keys() | self._sleepers

    def step(
        self, deleted: Iterable[int] = (), inserted: Iterable[Grounded] = ()
    ) -> tuple[set[int], set[int]]:
        """Apply deleted leaves and inserted derivations; the rows inserted and those deleted.
        Insertions come first, so that no row is deleted that has another derivation. A deleted row
        takes the derivations that use it along: a caller that feeds rows back as derivations sends
        these again once the row is inserted again."""
        entered = self._add(inserted)
        deleted_leaves = set(deleted)
        after = self._without(deleted_leaves)
        left = after.rows_gone
        for leaf in deleted_leaves:
            for derivation in list(self._using(self._of_leaf, leaf)):
                self._forget(derivation)
        for row, function in after.functions.items():
            if row in left:
                del self._functions[row]
                self._mention(row, set())
                for derivation in list(self._using(self._used_by, row)):
                    self._forget(derivation)
            else:
                self._functions[row] = function
                self._mention(row, after.mentions[row])
        for leaf in deleted_leaves:
            self._release(leaf)
        return entered - left, left - entered

    # Deleted leaves.

    def gone_without(self, leaves: Iterable[int]) -> set[int]:
        """The rows that would be deleted with these leaves; nothing is changed."""
        return self._without(set(leaves)).rows_gone

    def _without(self, deleted: Collection[int]) -> _After:
        for leaf in deleted:
            self._wake_all_of(leaf)
        known = [leaf for leaf in sorted(deleted) if leaf in self._variables]
        touched = set[int]().union(*(self._mentioned_by[leaf] for leaf in known))
        cube = self._all_of(map(self._variable, known))
        after = _After({}, {})
        for row in sorted(touched):
            after.functions[row] = self._within(self._functions[row].forall, cube)
            after.mentions[row] = self._mentions[row].difference(deleted)
        if self._ship is Shipping.LAZY:
            self._look_for_others(after, deleted)
        return after

    def _look_for_others(self, after: _After, deleted: Collection[int]) -> None:
        """Give rows without a function that of another derivation, if any. Done before any row is
        deleted: otherwise rows would be reported as deleted and inserted again."""
        left = sorted(after.rows_gone)
        while left:
            row = left.pop()
            if after.functions[row].satisfiable():
                continue
            derivation = self._other(row, after, deleted)
            if derivation is None:
                continue
            after.functions[row] = self._product(derivation, after.functions)
            after.mentions[row] = self._leaves_of(derivation, after.mentions)
            # The rows that use it may be derived again.
            left += [
                user.head
                for user in self._using(self._used_by, row)
                if user.head in after.functions and not after.functions[user.head].satisfiable()
            ]

    def _other(self, row: int, after: _After, deleted: Collection[int]) -> Grounded | None:
        if self._asleep is not None:
            self._remember_all(self._asleep.take_of_head(row))
        for derivation in self._derivations.get(row, ()):
            is_whole = all(
                body not in after.functions or after.functions[body].satisfiable()
                for body in derivation.bodies
            )
            if (
                is_whole
                and self._is_there(derivation)
                and not any(leaf in deleted for leaf in derivation.leaves)
            ):
                return derivation
        return None

    # Inserted derivations.

    def _add(self, inserted: Iterable[Grounded]) -> set[int]:
        """Add these derivations; the rows that they insert."""
        work: list[Grounded] = []
        for derivation in inserted:
            self._remember(derivation)
            work.append(derivation)
        entered: set[int] = set()
        index = 0
        while index < len(work):
            derivation = work[index]
            index += 1
            if not self._is_there(derivation) or derivation.head in self._sleepers:
                continue
            known = self._functions.get(derivation.head)
            if known is not None and self._ship is Shipping.LAZY:
                continue
            derived = self._product(derivation, {})
            function = derived if known is None else self._within(known.__or__, derived)
            if known is not None and function == known:
                continue
            self._functions[derivation.head] = function
            leaves = self._leaves_of(derivation, {})
            self._mention(derivation.head, leaves.union(self._mentions.get(derivation.head, ())))
            if known is None:
                entered.add(derivation.head)
            work += self._used_by.get(derivation.head, ())
        return entered

    def _is_there(self, derivation: Grounded) -> bool:
        return all(body in self._functions or body in self._sleepers for body in derivation.bodies)

    def _leaves_of(self, derivation: Grounded, others: Mapping[int, set[int]]) -> set[int]:
        """The leaves that the function of a derivation may mention; `_product` comes before."""
        bodies = (others.get(body, self._mentions.get(body, set())) for body in derivation.bodies)
        return set(derivation.leaves).union(*bodies)

    def _product(self, derivation: Grounded, others: Mapping[int, _Function]) -> _Function:
        """The function of a derivation; bodies in `others` have those functions."""
        parts = [
            others[body] if body in others else self._function(body) for body in derivation.bodies
        ]
        return self._all_of([*parts, *map(self._variable, derivation.leaves)])

    # Restored derivations.

    def _function(self, row: int) -> _Function:
        left = [row] if row in self._sleepers else []
        while left:
            row_left = left[-1]
            if row_left not in self._sleepers:
                left.pop()
                continue
            assert self._asleep is not None, "where rows were loaded"
            derivation = self._asleep.chosen(row_left)
            first = [body for body in derivation.bodies if body in self._sleepers]
            left += first
            if not first:
                self._sleepers.remove(row_left)
                self._functions[row_left] = self._product(derivation, {})
                self._mention(row_left, self._leaves_of(derivation, {}))
        return self._functions[row]

    def _wake_all_of(self, leaf: int) -> None:
        """Make the functions that mention a leaf. A row without a function lives by chosen
        derivations. Whatever changes the function of a row it uses makes its function too, since
        that mentions the same leaf."""
        if self._asleep is not None:
            for row in sorted(self._asleep.made_of(leaf) & self._sleepers):
                self._function(row)

    def _using(self, index: dict[int, dict[Grounded, None]], number: int) -> Iterable[Grounded]:
        """The derivations in `index` that use a row or a leaf."""
        if self._asleep is not None:
            self._remember_all(self._asleep.take_of_part(number))
        return index.get(number, ())

    def _remember_all(self, derivations: Iterable[Grounded]) -> None:
        for derivation in derivations:
            self._remember(derivation)

    # Indexes of derivations and leaves.

    def _remember(self, derivation: Grounded) -> None:
        self._derivations.setdefault(derivation.head, {})[derivation] = None
        for body in derivation.bodies:
            self._used_by.setdefault(body, {})[derivation] = None
        for leaf in derivation.leaves:
            self._of_leaf.setdefault(leaf, {})[derivation] = None

    def _forget(self, derivation: Grounded) -> None:
        for index, keys in (
            (self._derivations, (derivation.head,)),
            (self._used_by, derivation.bodies),
            (self._of_leaf, derivation.leaves),
        ):
            for key in keys:
                result = index.get(key, {})
                result.pop(derivation, None)
                if not result:
                    index.pop(key, None)

    def _mention(self, row: int, leaves: set[int]) -> None:
        known = self._mentions.get(row, set())
        for leaf in known - leaves:
            self._mentioned_by[leaf].discard(row)
        for leaf in leaves - known:
            self._mentioned_by.setdefault(leaf, set()).add(row)
        if leaves:
            self._mentions[row] = leaves
        else:
            self._mentions.pop(row, None)

    def _variable(self, leaf: int) -> _Function:
        position = self._variables.get(leaf)
        if position is None:
            position = self._free.pop() if self._free else self._manager.add_vars(1)[0]
            self._variables[leaf] = position
            self._leaf_of[position] = leaf
            self._mentioned_by.setdefault(leaf, set())
        return self._within(self._manager.var, position)

    def _release(self, leaf: int) -> None:
        """Free a variable that no function mentions, for another leaf."""
        position = self._variables.pop(leaf, None)
        if position is not None:
            assert not self._mentioned_by.pop(leaf), "every function that mentions it was changed"
            del self._leaf_of[position]
            self._free.append(position)

    # Functions.

    def smallest(self, row: int) -> tuple[frozenset[int], bool]:
        """A set of leaves that derives a row, and whether it is a smallest one, which holds where
        the row's whole function was handed on. Cost: the nodes of the row's function."""
        chosen = fewest_true(self._function(row))
        assert chosen is not None, "a row that is there has a derivation"
        leaves = frozenset(self._leaf_of[position] for position in chosen)
        return leaves, self._ship is Shipping.EAGER

    def _all_of(self, functions: Iterable[_Function]) -> _Function:
        result = self._manager.true()
        for function in functions:
            result = self._within(result.__and__, function)
        return result

    def _within(self, operation: Callable[[Any], _Function], argument: object) -> _Function:
        """The operation's result; EvaluationError beyond the limit of nodes."""
        try:
            return operation(argument)
        except MemoryError:
            # Nodes that nothing refers to any more take places, too.
            self._manager.gc()
        try:
            return operation(argument)
        except MemoryError:
            raise EvaluationError(
                f"Provenance by absorption needs more than {self._nodes:,} nodes",
                hint="use `ship: lazy` or allow more `nodes`; policy `auto` continues with ranks, "
                "which give the same rows and sketches",
                code=PROVENANCE_TOO_LARGE,
            ) from None


def missing_package() -> UsageError | None:
    """The error that making functions will raise, determined without loading anything; None if
    none."""
    return _missing() if find_spec(PACKAGE) is None else None


def _missing() -> UsageError:
    # Naming the package works wherever impctl itself was installed from.
    return UsageError(
        f"Provenance by absorption needs the package `{PACKAGE}`, which is not installed",
        hint=f"run `pip install '{PACKAGE}>=0.13'` (the only package in impctl's extra `bdd`)",
        code=EXTRA_MISSING,
    )


def _manager(nodes: int) -> Any:
    try:
        from oxidd.bdd import BDDManager
    except ImportError as error:
        raise _missing() from error
    return BDDManager(nodes, _CACHE, 1)


# A fixpoint whose rows are kept by absorption instead of ranks. Identity, input and output are
# those of `engine.fixpoint.fixpoint`: T = base + step(T, tables), and the change is the rows that
# entered and left T. A row whose function of table rows becomes false is deleted. The step contains
# the base too, as derivations without bodies. The leaves are the rows of the step's inputs; each
# row has a number that its derivations carry. Insertions are completed before deletions, so no
# rederived row is deleted. Emitted derivations and weights, and so sketches and counts, equal those
# of a fixpoint by ranks. State: the leaves and the rows of T with their numbers, the derivations
# whose bodies are in T, and the state of the step's operators. Functions are not stored: after a
# restart lazy ones are computed where a change touches them, and may then know other derivations;
# whole ones all in the first step. Cost: that of absorption, some microseconds per changed
# derivation. After a restart all derivations are sorted and processed in rounds, in arrays (a chain
# takes a round per row); whole functions take some microseconds each.

_HEAD = "head"
_OTHER_ROWS = "Rows of WITH RECURSIVE do not match their derivations"


class Ingredient(Struct, frozen=True):
    """An input whose rows are leaves, identified by `columns`; their numbers go on in the column
    `number`. Rows of no table (`is_leaf` is false) are never deleted."""

    columns: tuple[tuple[AttributeId, SqlType], ...]
    number: AttributeId
    is_leaf: bool = True


class AbsorbedFixpoint(Recursion):
    """Rows of `columns`; its inputs are those of `step` after the first, an ingredient each.

    The step's first input has rows of T with their numbers in a column `number`. Its output has the
    columns of T, and in those of `bodies` the numbers of all rows used: even for rows of T, odd for
    leaves, NULL or negative for none. `accesses` is the number of its tags. UnsupportedError beyond
    `limits`, EvaluationError where functions take more nodes than `absorbs` allows.
    """

    limits: Limits
    rows: RowNumbers

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        number: AttributeId,
        step: Circuit,
        ingredients: Sequence[Ingredient],
        bodies: Sequence[AttributeId],
        accesses: int = 0,
        *,
        absorbs: Absorbs = Absorbs(),  # noqa: B008 - it never changes
        limits: Limits = LIMITS,
    ) -> None:
        super().__init__(name, number, step, (0, accesses), limits)
        self.absorbs = absorbs
        self.ingredients = tuple(ingredients)
        self.columns = tuple(columns)
        self._names = tuple(name for name, _ in columns)
        self._bodies = tuple(bodies)
        self.form = (
            self.columns,
            number,
            self.ingredients,
            self._bodies,
            accesses,
            step.wires,
            absorbs.ship,
        )
        self.rows = RowNumbers(f"{name}.rows", columns)
        self.leaves = tuple(
            RowNumbers(f"{name}.leaves{index}", ingredient.columns)
            for index, ingredient in enumerate(ingredients)
        )
        numbers = tuple((column, LONG) for column in (_HEAD, *self._bodies))
        self._derivation_index = RowIndex(f"{name}.derivations", numbers, (_HEAD,), 0)
        self._rows_counter, self._leaves_counter = f"{name}.rows_given", f"{name}.leaves_given"
        self._assigned = {self._rows_counter: 0, self._leaves_counter: 0}
        self._by_number = RowsByNumber(columns, number)
        self._absorption: Absorption | None = None  # None until it is built from the stored state
        self._deleted_leaves: set[int] = set()  # Leaves deleted while the circuit fills

    def step(self, *ingredients: Batch | None) -> Batch | None:
        """The rows inserted and deleted; None while the circuit fills."""
        numbered = [self._numbered(index, batch) for index, batch in enumerate(ingredients)]
        result = self._step.step(None, *numbered)
        result = result if result is not None and len(result) else None
        if self._is_filling:
            self._held_back[1].extend([] if result is None else [apart_in_memory(result)])
            return None
        return self._changed(None, (), result)

    def _numbered(self, index: int, batch: Batch | None) -> Batch | None:
        if batch is None or not len(batch):
            return None
        ingredient = self.ingredients[index]
        if ingredient.is_leaf:
            leaf_columns = [batch.columns[name] for name, _ in ingredient.columns]
            result = self.leaves[index].counted(leaf_columns, batch.weights, self._fresh_leaves)
            self._deleted_leaves.update(result.deleted.tolist())
            numbers = result.numbers
        else:
            numbers = np.full(len(batch), -1, dtype=np.int64)
        columns = {**batch.columns, ingredient.number: Vector(LONG, numbers)}
        return Batch(columns, batch.weights, batch.tags)

    def _changed(
        self, base: Batch | None, tables: Sequence[Batch | None], waiting: Batch | None = None
    ) -> Batch:
        assert base is None, "all that derives rows stands in the step"
        absorption = self.absorption
        deleted_leaves, self._deleted_leaves = self._deleted_leaves, set()
        self._report = DerivationTags(self._accesses)
        moves = _Moves()
        inserted = self._record(moves, waiting)
        self._check(moves, deleted_leaves)
        rounds = 0
        while entered := absorption.step((), inserted)[0]:
            rounds += 1
            self._count += len(entered)
            self.limits.check(rounds, self._count)
            moves.entered |= entered
            inserted = self._record(moves, self._stepped(self._by_number.rows([*entered], 1)))
        _, left = absorption.step(deleted_leaves)
        if left:
            self._count -= len(left)
            self._record(moves, self._stepped(self._by_number.rows([*left], -1)))
        if moves.noted:
            noted = consolidated(stacked_batches(moves.noted))
            self._derivation_index.add(noted, self._derivation_index.codes_of(noted))
        return self._net(moves.entered, left)

    def _record(self, moves: _Moves, batch: Batch | None) -> list[Grounded]:
        """The inserted derivations, recorded and reported with all others; new heads get
        numbers."""
        if batch is None or not len(batch):
            return []
        self._report.complete(batch)
        keys, known, owners = self.rows.found(
            [batch.columns[name] for name in self._names], len(batch)
        )
        new = (known < 0).nonzero()[0]
        known[new] = 2 * self._fresh(self._rows_counter, len(new))
        parts = {_HEAD: Vector(LONG, known[owners])}
        for name in self._bodies:
            column = batch.columns[name]
            parts[name] = Vector(LONG, np.where(column.validity(), column.values, -1))
        noted = consolidated(Batch(parts, batch.weights, ()))
        if len(new):
            # A row without a present derivation is not inserted, and its number is never used.
            heads = noted.columns[_HEAD].values[noted.weights > 0]
            new = new[np.isin(known[new], heads)]
            columns = [column.take(new) for column in keys]
            self.rows.put(columns, known[new], 1)
            self._by_number.put(columns, known[new], 1)
        moves.noted.append(noted)
        return grounded(_matrix(noted.keep(noted.weights > 0)))

    def _check(self, moves: _Moves, deleted_leaves: set[int]) -> None:
        """CountBelowZeroError where a derivation was deleted all of whose leaves exist."""
        for noted in moves.noted:
            less = noted.keep(noted.weights < 0)
            is_open = [
                index
                for index, derivation in enumerate(grounded(_matrix(less)))
                if deleted_leaves.isdisjoint(derivation.leaves)
            ]
            if is_open:
                self._check_left(less.take(np.array(is_open, dtype=np.int64)))

    def _check_left(self, less: Batch) -> None:
        """Check that each head of these derivations, some of which were deleted, has others
        left."""
        heads = distinct_values(np.sort(less.columns[_HEAD].values))
        requested = [Vector(LONG, heads)]
        before = self._derivation_index.find(key_codes(requested, len(heads)), requested).rows
        after = consolidated(stacked_or_empty((before, less), 0))
        left = set(map(tuple, _matrix(after.keep(after.weights > 0)).tolist()))
        if not left.issuperset(map(tuple, _matrix(less).tolist())):
            raise disagreement(
                "A derivation of a row of WITH RECURSIVE was removed, but its table rows still "
                "exist"
            )

    def _net(self, entered: set[int], left: set[int]) -> Batch:
        """The net change of the rows; deleted rows lose their numbers."""
        inserted = self._by_number.rows([*(entered - left)], 1)
        deleted = self._by_number.rows([*(left - entered)], -1)
        if left:
            deleted_rows = self._by_number.rows([*left], -1)
            columns = [deleted_rows.columns[name] for name in self._names]
            self.rows.put(columns, deleted_rows.columns[self._stamp].values, -1)
            self._by_number.put(columns, deleted_rows.columns[self._stamp].values, -1)
        return only_columns(stacked_or_empty((inserted, deleted), 0), self._names)

    # Numbers.

    def _fresh_leaves(self, count: int) -> Ints:
        return 2 * self._fresh(self._leaves_counter, count) + 1

    def _fresh(self, counter: str, count: int) -> Ints:
        start = self._assigned[counter]
        self._assigned[counter] = start + count
        return np.arange(start, start + count, dtype=np.int64)

    # State.

    @property
    def absorption(self) -> Absorption:
        if self._absorption is None:
            self._absorption = Absorption(self.absorbs.ship, self.absorbs.nodes)
            rows = self.rows.whole()
            if len(rows):
                self._take_up_rows(self._absorption, rows)
            elif len(self.numbers()):
                raise disagreement(_OTHER_ROWS)
        return self._absorption

    def _take_up_rows(self, absorption: Absorption, rows: Batch) -> None:
        """CountBelowZeroError where the stored derivations derive other rows than are stored."""
        columns, numbers = (
            [rows.columns[name] for name in self._names],
            rows.columns[NUMBER].values,
        )
        self._by_number.put(columns, numbers, 1)
        absorption.take_up(self.numbers())
        if set(absorption.rows) != set(numbers.tolist()):
            raise disagreement(_OTHER_ROWS)

    def numbers(self) -> Ints:
        """All derivations whose bodies are in T: the head's number and those of what it uses,
        negative for none; shape (derivations, 1 + numbers of the step)."""
        derivations = self._derivation_index.whole()
        if not len(derivations):
            return np.zeros((0, 1 + len(self._bodies)), dtype=np.int64)
        return _matrix(derivations)

    def arrangements(self) -> Sequence[Keeper]:
        leaves = (
            numbers.index
            for numbers, ingredient in zip(self.leaves, self.ingredients, strict=True)
            if ingredient.is_leaf
        )
        return (self.rows.index, self._derivation_index, *leaves, *self._step.arrangements())

    def counters(self) -> Mapping[str, int]:
        """How many numbers were assigned, how many rows T has, and the step's counters."""
        return {**self._assigned, **super().counters()}

    def take_up(self, counters: Mapping[str, int]) -> None:
        self._assigned = {name: counters[name] for name in self._assigned}
        super().take_up(counters)


class _Moves:
    def __init__(self) -> None:
        self.noted: list[Batch] = []
        self.entered: set[int] = set()


def _matrix(batch: Batch) -> Ints:
    if not len(batch):
        return np.zeros((0, 0), dtype=np.int64)
    result: Ints = np.stack([column.values for column in batch.columns.values()], axis=1)
    return result

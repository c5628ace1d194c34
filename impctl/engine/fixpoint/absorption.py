"""Absorption provenance: of each row of a fixpoint the function of table rows that it depends on.

Identity: P(t) is the OR over the derivations of t of the AND of their bodies' functions and of
their leaves, a variable each; t is in T if and only if P(t) is not false. Functions are monotone
and kept as decision diagrams, which absorb what derives nothing new; rows of tables that go are
variables set to false (a universal quantification over them, which for monotone functions is the
same), so circles never keep a row (Liu et al., *Recursive Computation of Regions and
Connectivity in Networks*, 2009). What rows depend on which variable is indexed.
Shipping: EAGER hands the whole function on, whenever it changes. LAZY hands on what a row came
with, and keeps its other derivations until that is false; then the next of these is, and only a row
that has none left goes. T is the same; a lazy function may know too few ways, never one too
many.
State: derivations, functions, the index. Cost: eager, the changes of functions, which may be
exponentially large; lazy, the rows whose function mentions what went. Lazy functions of derivations
that were taken up are made when something asks for them, with those of rows that they use.
Leaves are told apart by who calls: equal rows of a table are as many leaves as there are copies. A
leaf that went may come again: its derivations are new ones then.
Not to be confused with the default, which keeps ranks (`engine.operators.fixpoint`): it cannot tell
which rows of tables a row needs. Out of scope: finding derivations.
After an error what is here is of no use any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from importlib.util import find_spec
from typing import Any

from impctl.data.vector import Ints
from impctl.engine.fixpoint.derivations import Asleep, Grounded, grounded
from impctl.engine.fixpoint.fewest_true import fewest_true
from impctl.errors import EvaluationError, UsageError
from impctl.values import dataclass

NODES = 5_000_000
"""Nodes of decision diagrams there may be; some 100 MB."""
PROVENANCE_TOO_LARGE = "provenance_too_large"
"""The code of the error where there are more."""
EXTRA_MISSING = "extra_missing"
"""The code of the error where the package that functions live in is not installed."""
PACKAGE = "oxidd"
_CACHE = 1 << 20
"""Results of operations on functions that are remembered."""

_Function = Any
"""A decision diagram of `oxidd`."""


class Ship(StrEnum):
    LAZY = "lazy"
    EAGER = "eager"


@dataclass(frozen=True, slots=True)
class Absorbs:
    """How functions are shipped, and how many nodes there may be."""

    ship: Ship = Ship.LAZY
    nodes: int = NODES


@dataclass(frozen=True, slots=True)
class _After:
    """What the functions of some rows would be, and which leaves these may mention."""

    functions: dict[int, _Function]
    mentions: dict[int, set[int]]

    @property
    def rows_gone(self) -> set[int]:
        """The rows whose function would be false."""
        return {row for row, function in self.functions.items() if not function.satisfiable()}


class Absorption:
    """Rows of one fixpoint with their functions."""

    def __init__(self, ship: Ship = Ship.LAZY, nodes: int = NODES) -> None:
        """UsageError where the package for decision diagrams is not installed."""
        self._ship = ship
        self._nodes = nodes
        self._manager = _manager(nodes)
        self._functions: dict[int, _Function] = {}
        self._asleep: Asleep | None = None
        self._sleepers: set[int] = set()
        """Rows whose function was not asked for since they were taken up: by chosen derivations,
        of leaves and rows that had all their functions then."""
        self._derivations: dict[int, dict[Grounded, None]] = {}
        self._used_by: dict[int, dict[Grounded, None]] = {}
        """The derivations that have a row among their bodies."""
        self._of_leaf: dict[int, dict[Grounded, None]] = {}
        self._variables: dict[int, int] = {}
        self._leaf_of: dict[int, int] = {}
        self._free: list[int] = []
        """Variables that no function mentions any more."""
        self._mentions: dict[int, set[int]] = {}
        """The leaves that the function of a row may mention."""
        self._mentioned_by: dict[int, set[int]] = {}
        """The rows whose function may mention a leaf."""

    def take_up(self, numbers: Ints) -> None:
        """The derivations of an earlier one, before any others: shape (derivations, 1 + numbers of
        one), as `grounded` has them. Lazy functions are made when something asks for them."""
        if self._ship is Ship.EAGER:
            self.step((), grounded(numbers))
            return
        self._asleep = Asleep(numbers)
        self._sleepers = set(self._asleep.rows().tolist())

    @property
    def rows(self) -> Collection[int]:
        """The rows of the fixpoint."""
        return self._functions.keys() | self._sleepers

    def step(
        self, went: Iterable[int] = (), came: Iterable[Grounded] = ()
    ) -> tuple[set[int], set[int]]:
        """Leaves that went and derivations that came; the rows that came in, and those that left.

        What comes is looked at first, so that no row leaves that has a ground again. A row that
        leaves takes the derivations that use it along: who sends rows on and has them back as
        derivations sends these anew once it is in again.
        """
        entered = self._add(came)
        gone = set(went)
        after = self._without(gone)
        left = after.rows_gone
        for leaf in gone:
            for one in list(self._using(self._of_leaf, leaf)):
                self._forget(one)
        for row, function in after.functions.items():
            if row in left:
                del self._functions[row]
                self._mention(row, set())
                for one in list(self._using(self._used_by, row)):
                    self._forget(one)
            else:
                self._functions[row] = function
                self._mention(row, after.mentions[row])
        for leaf in gone:
            self._release(leaf)
        return entered - left, left - entered

    # Leaves that go.

    def gone_without(self, leaves: Iterable[int]) -> set[int]:
        """The rows that would leave if these leaves went; nothing does."""
        return self._without(set(leaves)).rows_gone

    def _without(self, gone: Collection[int]) -> _After:
        """What the functions that mention these leaves would be without them."""
        for leaf in gone:
            self._wake_all_of(leaf)
        known = [leaf for leaf in sorted(gone) if leaf in self._variables]
        touched = set[int]().union(*(self._mentioned_by[leaf] for leaf in known))
        cube = self._all_of(map(self._variable, known))
        after = _After({}, {})
        for row in sorted(touched):
            after.functions[row] = self._within(self._functions[row].forall, cube)
            after.mentions[row] = self._mentions[row].difference(gone)
        if self._ship is Ship.LAZY:
            self._look_for_others(after, gone)
        return after

    def _look_for_others(self, after: _After, gone: Collection[int]) -> None:
        """Give rows without a function that of another derivation, as far as there is any.

        Before any of them goes: else it would be told that rows went which come again at once.
        """
        left = sorted(after.rows_gone)
        while left:
            row = left.pop()
            if after.functions[row].satisfiable():
                continue
            one = self._other(row, after, gone)
            if one is None:
                continue
            after.functions[row] = self._product(one, after.functions)
            after.mentions[row] = self._leaves_of(one, after.mentions)
            # What uses it may have a ground again.
            left += [
                user.head
                for user in self._using(self._used_by, row)
                if user.head in after.functions and not after.functions[user.head].satisfiable()
            ]

    def _other(self, row: int, after: _After, gone: Collection[int]) -> Grounded | None:
        """A derivation of a row that nothing that went is needed for."""
        if self._asleep is not None:
            self._remember_all(self._asleep.take_of_head(row))
        for one in self._derivations.get(row, ()):
            is_whole = all(
                body not in after.functions or after.functions[body].satisfiable()
                for body in one.bodies
            )
            if is_whole and self._is_there(one) and not any(leaf in gone for leaf in one.leaves):
                return one
        return None

    # Derivations that come.

    def _add(self, came: Iterable[Grounded]) -> set[int]:
        """The rows that come in with these derivations."""
        work: list[Grounded] = []
        for one in came:
            self._remember(one)
            work.append(one)
        entered: set[int] = set()
        at = 0
        while at < len(work):
            one = work[at]
            at += 1
            if not self._is_there(one) or one.head in self._sleepers:
                continue
            known = self._functions.get(one.head)
            if known is not None and self._ship is Ship.LAZY:
                continue
            made = self._product(one, {})
            function = made if known is None else self._within(known.__or__, made)
            if known is not None and function == known:
                continue
            self._functions[one.head] = function
            leaves = self._leaves_of(one, {})
            self._mention(one.head, leaves.union(self._mentions.get(one.head, ())))
            if known is None:
                entered.add(one.head)
            work += self._used_by.get(one.head, ())
        return entered

    def _is_there(self, one: Grounded) -> bool:
        return all(body in self._functions or body in self._sleepers for body in one.bodies)

    def _leaves_of(self, one: Grounded, others: Mapping[int, set[int]]) -> set[int]:
        """What the function of a derivation may mention; of bodies among the others, that there.

        These have functions: it is asked for behind `_product`.
        """
        bodies = (others.get(body, self._mentions.get(body, set())) for body in one.bodies)
        return set(one.leaves).union(*bodies)

    def _product(self, one: Grounded, others: Mapping[int, _Function]) -> _Function:
        """The function of a derivation; of bodies among the others, that there."""
        parts = [others[body] if body in others else self._function(body) for body in one.bodies]
        return self._all_of([*parts, *map(self._variable, one.leaves)])

    # What was taken up.

    def _function(self, row: int) -> _Function:
        """The function of a row, made where it was not asked for so far."""
        left = [row] if row in self._sleepers else []
        while left:
            row_left = left[-1]
            if row_left not in self._sleepers:
                left.pop()
                continue
            assert self._asleep is not None, "where rows were loaded"
            one = self._asleep.chosen(row_left)
            first = [body for body in one.bodies if body in self._sleepers]
            left += first
            if not first:
                self._sleepers.remove(row_left)
                self._functions[row_left] = self._product(one, {})
                self._mention(row_left, self._leaves_of(one, {}))
        return self._functions[row]

    def _wake_all_of(self, leaf: int) -> None:
        """Make the functions that mention a leaf.

        A row that has not woken goes by chosen derivations, and whatever changed the function of a
        row that it uses has woken it, since it mentions that leaf, too.
        """
        if self._asleep is not None:
            for row in sorted(self._asleep.made_of(leaf) & self._sleepers):
                self._function(row)

    def _using(self, index: dict[int, dict[Grounded, None]], number: int) -> Iterable[Grounded]:
        """The derivations that a row or a leaf takes part in, by the index of these."""
        if self._asleep is not None:
            self._remember_all(self._asleep.take_of_part(number))
        return index.get(number, ())

    def _remember_all(self, derivations: Iterable[Grounded]) -> None:
        for one in derivations:
            self._remember(one)

    # What is known of which leaf.

    def _remember(self, one: Grounded) -> None:
        self._derivations.setdefault(one.head, {})[one] = None
        for body in one.bodies:
            self._used_by.setdefault(body, {})[one] = None
        for leaf in one.leaves:
            self._of_leaf.setdefault(leaf, {})[one] = None

    def _forget(self, one: Grounded) -> None:
        for index, keys in (
            (self._derivations, (one.head,)),
            (self._used_by, one.bodies),
            (self._of_leaf, one.leaves),
        ):
            for key in keys:
                result = index.get(key, {})
                result.pop(one, None)
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
        place = self._variables.get(leaf)
        if place is None:
            place = self._free.pop() if self._free else self._manager.add_vars(1)[0]
            self._variables[leaf] = place
            self._leaf_of[place] = leaf
            self._mentioned_by.setdefault(leaf, set())
        return self._within(self._manager.var, place)

    def _release(self, leaf: int) -> None:
        """A variable that no function mentions can stand for another leaf."""
        place = self._variables.pop(leaf, None)
        if place is not None:
            assert not self._mentioned_by.pop(leaf), "every function that mentions it was changed"
            del self._leaf_of[place]
            self._free.append(place)

    # Functions.

    def smallest(self, row: int) -> tuple[frozenset[int], bool]:
        """A set of leaves that derives a row, and whether it is a smallest one: of a row whose
        whole function was handed on. Cost: the nodes of the row's function."""
        chosen = fewest_true(self._function(row))
        assert chosen is not None, "a row that is there has a derivation"
        leaves = frozenset(self._leaf_of[place] for place in chosen)
        return leaves, self._ship is Ship.EAGER

    def _all_of(self, functions: Iterable[_Function]) -> _Function:
        result = self._manager.true()
        for one in functions:
            result = self._within(result.__and__, one)
        return result

    def _within(self, operation: Callable[[Any], _Function], argument: object) -> _Function:
        """The operation's result; EvaluationError where it takes more nodes than there may be."""
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
    """What making functions will fail with, found without loading anything; None if nothing."""
    return _missing() if find_spec(PACKAGE) is None else None


def _missing() -> UsageError:
    # By its own name it is found from wherever impctl itself was installed.
    return UsageError(
        f"Provenance by absorption needs the package `{PACKAGE}`, which is not installed",
        hint=f"run `pip install '{PACKAGE}>=0.13'` (the only package in impctl's extra `bdd`)",
        code=EXTRA_MISSING,
    )


def _manager(nodes: int) -> Any:
    """Where functions live."""
    try:
        from oxidd.bdd import BDDManager
    except ImportError as error:
        raise _missing() from error
    return BDDManager(nodes, _CACHE, 1)

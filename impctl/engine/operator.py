"""The contract of an operator of a circuit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from impctl.engine.trace import RowIndex, RunChange
from impctl.errors import UnsupportedError
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.data.pages import StoredTable
    from impctl.data.vector import Ints
    from impctl.engine.batch import Batch
    from impctl.engine.lookups import DistantRows, Refill
    from impctl.expr.nodes import Expr
    from impctl.types import AttributeId


@dataclass(frozen=True, slots=True)
class Limits:
    """Rounds in which rows come in, in one go, and rows there may be."""

    rounds: int = 100_000
    rows: int = 20_000_000

    def check(self, rounds: int, rows: int, *, bests: bool = False) -> None:
        """UnsupportedError beyond either; `bests`: only the best rows stay, so no circle goes on
        but one round which a value gets better."""
        for what, result, most in (("rounds", rounds, self.rounds), ("rows", rows, self.rows)):
            if result > most:
                bound = "limit the recursion in the query, for example by a level"
                if bests and what == "rounds":
                    bound = (
                        "look for a cycle that keeps improving the value, for example by a "
                        "negative cost, and exclude such rows in the query"
                    )
                raise UnsupportedError(
                    f"A recursive query exceeds its limit of {most:,} {what}",
                    code="recursion_limit",
                    hint=f"{bound}, or raise `limits: {{{what}: {most}}}` in the workload file",
                )


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class LevelLimits:
    """Of UNION ALL: so many levels may have rows, and so many rows are too many.

    As Spark has it (4.3: `spark.sql.cteRecursionLevelLimit`, `cteRecursionRowLimit`), so that it is
    part of what such a query means: the base is the first level, and as many rows as the limit are
    an error already.
    """

    levels: int = 100
    rows: int = 1_000_000

    def check(self, levels: int, rows: int) -> None:
        """UnsupportedError for rows in more levels, or for so many rows."""
        what, most = "levels", self.levels
        if levels <= most:
            what, most = "rows", self.rows
            if rows < most:
                return
        raise UnsupportedError(
            f"A recursive query of UNION ALL reaches its limit of {most:,} {what}",
            code="recursion_limit",
            hint="limit the recursion in the query, for example by a level, or write UNION, which "
            "ends in circles; MAX RECURSION LEVEL n behind its name allows more levels",
        )


LEVEL_LIMITS = LevelLimits()


def level_limits(levels: int | None) -> LevelLimits:
    """The limits of an entry that says so many levels; of one that says nothing for None."""
    return LEVEL_LIMITS if levels is None else replace(LEVEL_LIMITS, levels=levels)


class Keeper(Protocol):
    """Keyed state that a checkpoint writes."""

    @property
    def name(self) -> str: ...

    @property
    def bytes_held(self) -> int: ...

    def load(self, tables: Sequence[tuple[int, StoredTable]]) -> None:
        """Take over stored runs; they count as saved."""
        ...

    def clear(self) -> None:
        """Forget all of it."""
        ...

    def compact(self) -> None:
        """Make the state smaller if that is worth it."""
        ...

    def changes(self) -> RunChange:
        """What changed since the last `saved`."""
        ...

    def saved(self) -> None:
        """The last changes are safe now."""
        ...


class Operator(ABC):
    """One step of a circuit: the change of its input, or of each, in; the change of its output out.

    An operator without state has nothing to write but `step`.
    """

    @property
    @abstractmethod
    def step(self) -> Callable[..., Batch | None]:
        """Consume the change of each input and return the output's.

        None is no change: of an input where there are several, of the output where nothing came
        out. An operator with no input changed is not stepped.
        """

    # State.

    def arrangements(self) -> Sequence[Keeper]:
        """The keyed state to checkpoint; of a keeper that is shared, every operator that has it."""
        return ()

    def counters(self) -> Mapping[str, int]:
        """Numbers to checkpoint beside the keyed state, by names of their own."""
        return {}

    def take_up(self, counters: Mapping[str, int]) -> None:  # noqa: B027 - most have none
        """Go on from the counters of a checkpoint, which may be those of others too.

        Raises KeyError for one of its own that is missing.
        """

    @property
    def joined_rows(self) -> int:
        """Rows written down by joining so far."""
        return 0

    # The output as a whole.

    def start(self) -> Batch | None:
        """Stand where empty input leaves it; the output over that, None where it is empty.

        Asked once of a fresh operator, after those that read it.
        """
        return None

    @property
    def can_output(self) -> bool:
        """Whether `output` can tell the rows from the state alone."""
        return False

    def output(self) -> Batch:
        """All rows of the output as it stands, as insertions; only where `can_output`, or after the
        step where it `can_refill`."""
        raise NotImplementedError

    @property
    def can_refill(self) -> bool:
        """Whether what stands above it may keep its best rows only, and ask for `output` again."""
        return False

    @property
    def unsure_rows(self) -> int:
        """Rows that were kept because a condition was too close to call."""
        return 0

    # Rows on their way through.

    @property
    def is_rowwise(self) -> bool:
        """Whether what it does to a row depends on that row alone and is the same at any time."""
        return False

    @property
    def is_linear(self) -> bool:
        """Whether its output is the sum of what every row of its inputs becomes by itself."""
        return self.is_rowwise

    def passes(self, column: AttributeId) -> AttributeId | None:
        """The column of its only input that this one of the output is, unchanged; None for none."""
        return None

    # Constants that move.

    form: object = None
    """What it keeps or puts out, as far as `arrangements` do not tell."""

    def keeps_like(self, other: Operator) -> bool:
        """Whether both keep the same of the same columns, whatever their constants."""
        mine, theirs = (list(map(_form, one.arrangements())) for one in (self, other))
        return type(self) is type(other) and self.form == other.form and mine == theirs

    def says_like(self, other: Operator) -> bool:
        """Whether one that keeps like it has the same constants."""
        return True

    def turned(self, rows: Batch, was: Operator) -> Batch:
        """What it makes of all its input less what `was` makes, the same with other constants."""
        raise NotImplementedError

    # State that could be done without.

    held_sides: Sequence[tuple[str, tuple[AttributeId, ...]]] = ()
    """For each input, where it holds their rows by keys: the name of that state, and the keys."""

    group_keys: tuple[AttributeId, ...] = ()
    """Columns by which its output has one row per group of rows of its input; () where it is
    no such grouping."""

    piece: str = ""
    """Where it is such a grouping, or gives first rows, the name that these go by, kept or not."""

    can_rebuild: bool = False
    """Whether its state may be made of all rows of its input for one step, and be forgotten."""

    def group_codes(self) -> Ints:
        """The codes of the keys of all groups; only where it keeps them by `group_keys`."""
        raise NotImplementedError

    def group_bytes(self) -> int:
        """Bytes of all groups, those of when they were filled where it keeps none; only of such a
        grouping."""
        raise NotImplementedError

    def know(self, codes: Ints) -> None:
        """From now on there may be groups with keys of these codes; only where it reads them."""
        raise NotImplementedError

    # Rows that are not kept.

    @property
    def indexes(self) -> Sequence[RowIndex | DistantRows]:
        """For each input whose rows are found by keys, what finds them; the same ones each time."""
        return ()

    def keep_again(self, at: int, rows: Batch) -> None:
        """Keep rows that input `at`, one of those, has by now, in the end all; before a step."""
        raise NotImplementedError

    @property
    def reads(self) -> Sequence[DistantRows]:
        """Inputs that are read where they lie; each wants a reader before its first step."""
        return ()

    def end_by(self, limits: Limits) -> None:  # noqa: B027 - most end by themselves
        """How far a step may go from now on, where it may go on and on."""

    def fill(self, is_filling: bool) -> None:  # noqa: B027 - most just step
        """While it fills, some operators take rows in and give none.

        The output of one that `reads` comes from outside then (`Circuit.resume`); others hold
        theirs back until it is asked for (`filled`). Most are filled by their steps.
        """

    holds_back: bool = False
    """Whether rows come from it after its inputs have ended: with `filled`."""

    def ended(self, inputs: Sequence[bool]) -> None:  # noqa: B027 - most forget nothing by it
        """While it fills: of which inputs no more rows will come."""

    first_inputs: Sequence[int] = ()
    """While it fills: inputs that are to come whole before the others, which else are held back or
    looked up again and again."""

    def known_condition(self) -> Expr | None:
        """While it fills: what rows of its only input that `reads` must meet to come further, by
        what it knows; None where that is nothing."""
        return None

    def keep_at_hand(self) -> Sequence[str]:
        """Before filling ends: keep inputs that it would read but has at hand; their names."""
        return ()

    def filled(self) -> Iterable[Batch]:
        """The output that was held back while it filled; asked for once, before filling ends."""
        return ()

    @property
    def is_bounded(self) -> bool:
        """Whether it keeps only the best of its input, and may ask for the rest."""
        return False

    def refill_from(self, refill: Refill) -> None:
        """Where its input comes from again; only where it `is_bounded`."""
        raise NotImplementedError

    buffered: Sequence[str] = ()
    """Where not all of it must be kept, the names of the state with its rows or values."""

    def buffer_groups(self) -> int:
        """How many groups have first rows; only where they are kept by groups."""
        raise NotImplementedError

    def shed(self) -> None:
        """Keep the best alone of what it took up, which is all; before a step, only where it
        `is_bounded`."""
        raise NotImplementedError

    def keep_all(self, rows: Iterable[Batch]) -> None:
        """Keep these, all rows of its input, in place of the best that it took up; before a step,
        only where it could be bounded and is not."""
        raise NotImplementedError


def _form(keeper: Keeper) -> tuple[object, ...]:
    """The name of a piece of state, and its columns where these are rows."""
    if isinstance(keeper, RowIndex):
        return keeper.name, keeper.columns, keeper.keys
    return (keeper.name,)

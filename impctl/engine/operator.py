"""The contract of an operator of a circuit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from impctl.engine.trace import RowIndex, Trace
from impctl.errors import UnsupportedError

if TYPE_CHECKING:
    from impctl.data.vector import Ints
    from impctl.engine.batch import Batch
    from impctl.engine.lookups import DistantRows, Refill
    from impctl.expr.nodes import Expr
    from impctl.types import AttributeId


# Limits of a recursion. Law: exceeding one is an error, never a partial result.


class Limits(Struct, frozen=True):
    """Limits on the rounds of a step that insert rows, and on the number of rows."""

    rounds: int = 100_000
    rows: int = 20_000_000

    def check(self, rounds: int, rows: int, *, bests: bool = False) -> None:
        """Raise UnsupportedError beyond either; `bests`: only the best rows are kept, so that only
        a cycle that improves a value never ends."""
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


class LevelLimits(Struct, frozen=True):
    """Limits of UNION ALL: the number of levels with rows, and the number of rows that is too many.
    As in Spark (4.3: `spark.sql.cteRecursionLevelLimit`, `cteRecursionRowLimit`), so that they are
    part of the query's meaning: the base is the first level, and as many rows as the limit are an
    error already."""

    levels: int = 100
    rows: int = 1_000_000

    def check(self, levels: int, rows: int) -> None:
        """Raise UnsupportedError for too many levels or rows."""
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
    """The limits for a configured number of levels; the default for None."""
    return LEVEL_LIMITS if levels is None else replace(LEVEL_LIMITS, levels=levels)


# The interface of an operator. Law: code outside `engine` never inspects an operator's class; an
# operator without state answers with the defaults. Its obligations, and who checks each:
#
# 1. Stepping two batches one after the other equals stepping their sum; no change and an empty
#   batch change nothing; a batch and its negative leave the state as it was.
#   (`tests/engine/test_circuit.py` by circuits, `tests/compile/test_plans.py` by whole queries.)
# 2. `arrangements` and `counters` are all of its state: a new operator restored from them continues
#   as if never stopped. (The same two.)
# 3. Names of keepers and counters are unique in a circuit and given by the operator's creator. A
#   keeper may be shared; one operator alone writes it. (`Circuit`, `tests/engine/test_circuit.py`.)
# 4. `start` gives the output over empty input; `output`, where `can_output`, all of the present
#   output. (`tests/compile/test_against_reference.py`, `test_moving.py`.)
# 5. An `is_rowwise` operator may be stepped with any rows at any time. (`test_plans.py`.)
# 6. Inputs in `reads` are read as after the step, and stand for the rows before it.
#   (`tests/compile/test_reading.py`.)


Keeper: TypeAlias = Trace[Any]


class Operator(ABC):
    """One step of a circuit: maps the change of its inputs to the change of its output. An operator
    without state only writes `step`."""

    @property
    @abstractmethod
    def step(self) -> Callable[..., Batch | None]:
        """Consume the change of each input and return the output's. None is no change: of an input
        where there are several, of the output where nothing is emitted. An operator with no input
        changed is not stepped."""

    # State.

    def arrangements(self) -> Sequence[Keeper]:
        """The keyed state to checkpoint; every operator that shares a keeper lists it."""
        return ()

    def counters(self) -> Mapping[str, int]:
        """Numbers to checkpoint beside the keyed state, under names unique to the operator."""
        return {}

    def take_up(self, counters: Mapping[str, int]) -> None:  # noqa: B027 - most have none
        """Restore the counters of a checkpoint, which may include those of others. Raises KeyError
        for a missing one."""

    @property
    def joined_rows(self) -> int:
        """Rows stored by joining so far."""
        return 0

    # The output as a whole.

    def start(self) -> Batch | None:
        """Bring it to its state over empty input; the output over that, None where it is empty.
        Called once on a fresh operator, after those that read it."""
        return None

    @property
    def can_output(self) -> bool:
        """Whether `output` can compute the rows from the state alone."""
        return False

    def output(self) -> Batch:
        """All rows of the output, as insertions; only where `can_output`, or after the step where
        it `can_refill`."""
        raise NotImplementedError

    @property
    def can_refill(self) -> bool:
        """Whether the operator above may keep its best rows only, and call `output` again."""
        return False

    @property
    def unsure_rows(self) -> int:
        """Rows that were kept because a condition was too close to call."""
        return 0

    # Rows on their way through.

    @property
    def is_rowwise(self) -> bool:
        """Whether its effect on a row depends on that row alone and is the same at any time."""
        return False

    @property
    def is_linear(self) -> bool:
        """Whether its output is the sum of the outputs for every single input row."""
        return self.is_rowwise

    def passes(self, column: AttributeId) -> AttributeId | None:
        """The column of its only input that this output column is, unchanged; None for none."""
        return None

    # Constants that move.

    form: object = None  # What it keeps or emits, as far as `arrangements` do not determine it

    def keeps_like(self, other: Operator) -> bool:
        """Whether both keep the same of the same columns, whatever their constants."""
        left, right = (list(map(_form, operator.arrangements())) for operator in (self, other))
        return type(self) is type(other) and self.form == other.form and left == right

    def says_like(self, other: Operator) -> bool:
        """Whether one that keeps like it has the same constants."""
        return True

    def turned(self, rows: Batch, was: Operator) -> Batch:
        """Its output over all its input minus that of `was`, the same operator with other
        constants."""
        raise NotImplementedError

    # State that could be done without.

    held_sides: Sequence[tuple[str, tuple[AttributeId, ...]]] = ()
    """For each input, where it holds their rows by keys: the name of that state, and the keys."""

    group_keys: tuple[AttributeId, ...] = ()
    """Columns by which its output has one row per group of rows of its input; () where it is no
    such grouping."""

    piece: str = ""
    """Where it is such a grouping, or computes first rows, their name, whether stored or not."""

    def group_codes(self) -> Ints:
        """The codes of the keys of all groups; only where it keeps them by `group_keys`."""
        raise NotImplementedError

    def group_bytes(self) -> int:
        """Bytes of all groups, or where it keeps none, of those when they were filled; only of such
        a grouping."""
        raise NotImplementedError

    def know(self, codes: Ints) -> None:
        """Record that groups with keys of these codes may exist; only where it reads them."""
        raise NotImplementedError

    # Rows that are not kept.

    @property
    def indexes(self) -> Sequence[RowIndex | DistantRows]:
        """For each input whose rows are found by keys, their index; the same object each time."""
        return ()

    def keep_again(self, index: int, rows: Batch) -> None:
        """Keep the present rows of input `index`, one of those, eventually all; before a step."""
        raise NotImplementedError

    @property
    def reads(self) -> Sequence[DistantRows]:
        """Inputs that are read from the tables; each needs a reader before its first step."""
        return ()

    def end_by(self, limits: Limits) -> None:  # noqa: B027 - most end by themselves
        """Limit the steps from now on, where they may not terminate."""

    def fill(self, is_filling: bool) -> None:  # noqa: B027 - most just step
        """Start or end filling, during which some operators consume rows without emitting any. The
        output of one that `reads` comes from outside then (`Circuit.resume`); others hold theirs
        back until `filled`. Most are filled by their steps."""

    holds_back: bool = False  # Whether it emits rows after its inputs have ended: with `filled`

    def ended(self, inputs: Sequence[bool]) -> None:  # noqa: B027 - most forget nothing by it
        """While it fills: announce inputs from which no more rows will come."""

    first_inputs: Sequence[int] = ()
    """While it fills: inputs that must come whole before the others, which are otherwise held back
    or looked up again and again."""

    def known_condition(self) -> Expr | None:
        """While it fills: a condition that rows of its only input that it `reads` must meet, as far
        as known; None for none."""
        return None

    def keep_at_hand(self) -> Sequence[str]:
        """Before filling ends: keep inputs that it would read but has at hand; their names."""
        return ()

    def filled(self) -> Iterable[Batch]:
        """The output held back while it filled; called once, before filling ends."""
        return ()

    @property
    def is_bounded(self) -> bool:
        """Whether it keeps only the best of its input, and may request the rest."""
        return False

    def refill_from(self, refill: Refill) -> None:
        """Set the source of its input for refills; only where it `is_bounded`."""
        raise NotImplementedError

    buffered: Sequence[str] = ()
    """The names of the state with its rows or values, where not all of it must be kept."""

    def buffer_groups(self) -> int:
        """The number of groups with first rows; only where they are kept by groups."""
        raise NotImplementedError

    def shed(self) -> None:
        """Keep only the best of the restored rows, which are all; before a step, only where it
        `is_bounded`."""
        raise NotImplementedError

    def keep_all(self, rows: Iterable[Batch]) -> None:
        """Replace the restored best by these, all rows of its input; before a step, only where it
        could be bounded and is not."""
        raise NotImplementedError


def _form(keeper: Keeper) -> tuple[object, ...]:
    if isinstance(keeper, RowIndex):
        return keeper.name, keeper.columns, keeper.keys
    return (keeper.name,)

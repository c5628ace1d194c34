"""What an operator of a circuit is: everything that is asked of it from outside.

Law: nobody outside `engine` looks at what an operator is; whoever needs something asks here, and a
simple operator answers with the defaults. Its obligations, and who checks each:

1. Stepping two batches one after the other means the same as stepping their sum; no change and an
   empty batch change nothing; a batch and its negative leave the state as it was.
   (`tests/engine/test_laws.py` by circuits, `tests/circuits/test_laws.py` by whole queries.)
2. What `arrangements` and `counters` hand out is all that is remembered: a fresh operator that
   loaded the ones and took up the others goes on as if never stopped. (The same two.)
3. Names of keepers and counters are given by whoever made the operator, and no others of the
   circuit have them; a keeper may stand in several operators, and one of them alone writes it.
   (`Circuit`, when it is made, and `tests/engine/test_sharing.py`.)
4. `start` gives the output over empty input; `output`, where `can_output`, all of it as it stands.
   (`tests/circuits/test_against_reference.py`, `test_bounded.py`, `test_moved_above.py`.)
5. What `is_rowwise` may be stepped with any rows at any time. (`test_bounded.py`.)
6. Inputs in `reads` are read as they stand after the step, for what was there before it.
   (`tests/circuits/test_distant_sides.py`.)

Out of scope: what operators there are (`engine.operators`), how they are wired (`engine.circuit`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from impctl.data.pages import StoredTable
from impctl.data.vector import Ints
from impctl.engine.batch import Batch
from impctl.engine.distant_rows import DistantRows
from impctl.engine.fixpoint.limits import Limits
from impctl.engine.refill import Refill
from impctl.engine.row_index import RowIndex
from impctl.engine.run_log import RunChange
from impctl.expr.nodes import Expr
from impctl.types import AttributeId


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

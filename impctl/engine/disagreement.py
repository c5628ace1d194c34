"""The one answer of the engine to a change that its state contradicts, and to state it cannot read.

Law: a count below zero, or rows that were never counted, mean that the table's history and the
state disagree: an error that asks for recapture, never a guess. So does stored state with entries
that are missing, unknown or of other types, which only another release writes.
Out of scope: finding that out (whoever counts).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from impctl.errors import CountBelowZeroError, StateCorruptError


def disagreement(message: str) -> CountBelowZeroError:
    """The error; `message` says what was removed or found."""
    return CountBelowZeroError(
        message, hint="the table's history does not match the state; run `impctl capture` again"
    )


def never_held(what: str) -> CountBelowZeroError:
    """The error for a change that removes what the state never counted."""
    return disagreement(f"The change removes {what} that the stored state never contained")


def unreadable(what: str) -> StateCorruptError:
    """The error for stored state that this release did not write."""
    return StateCorruptError(
        f"The stored state was not written by this release of impctl: {what}",
        hint="run `impctl capture` again; `impctl maintain` does this if the policy allows it",
    )


@contextmanager
def loading() -> Iterator[None]:
    """While stored state is loaded: what fails then fails for what is stored."""
    try:
        yield
    except KeyError as error:
        raise unreadable(f"`{error.args[0]}` is missing") from error
    except (LookupError, TypeError, ValueError, pa.ArrowException) as error:
        raise unreadable(str(error).partition("\n")[0]) from error

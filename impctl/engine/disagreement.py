"""The one answer of the engine to a change that its state contradicts.

Law: a count below zero, or rows that were never counted, mean that the table's history and the
state disagree: an error that asks for recapture, never a guess.
Out of scope: finding that out (whoever counts).
"""

from __future__ import annotations

from impctl.errors import CountBelowZeroError


def disagreement(message: str) -> CountBelowZeroError:
    """The error; `message` says what was removed or found."""
    return CountBelowZeroError(
        message, hint="the table's history and the state disagree; run `impctl capture` again"
    )


def never_held(what: str) -> CountBelowZeroError:
    """The error for a change that removes what the state never counted."""
    return disagreement(f"The change removes {what} that the stored state never held")

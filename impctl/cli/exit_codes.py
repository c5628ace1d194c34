"""The exit codes, as `--help` and the documents show them.

Law: the codes of `impctl.errors`, and that of something to do, no other; they change only with a
major version. Out of scope: choosing one (`service.outcome`, `cli.boundary`).
"""

from __future__ import annotations

from impctl.errors import INTERRUPTED

PENDING = 2
"""With `--detailed-exitcode` only: there is something to do. It is the number such options have
elsewhere, and that of usage errors, from which `ok` of the JSON document tells it apart."""

EXIT_CODES = (
    (0, "done"),
    (1, "unexpected error"),
    (2, "usage or configuration"),
    (3, "query or table not supported"),
    (4, "refused by policy strict"),
    (5, "verification found an unsound sketch"),
    (6, "retryable: lock or storage"),
    (7, "history removed, recapture needed"),
    (INTERRUPTED, "interrupted"),
)


def exit_code_text() -> str:
    """The table, a line per code."""
    return "\n".join(f"{code:>5}  {meaning}" for code, meaning in EXIT_CODES)

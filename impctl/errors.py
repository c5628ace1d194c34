"""Everything that can go wrong, as one tree; each error knows its exit code, code, place and hint.

    ImpctlError                          1  unexpected
    ├── QueriesFailedError               that of the gravest failure of a Python call
    ├── ProblemsFoundError               that of the gravest problem of `doctor`
    ├── InvariantError                   1  a law of impctl is broken: refused, not guessed
    ├── UsageError                       2  usage or configuration
    │   └── WorkloadError                2  the workload file, all problems at once
    ├── UnsupportedError                 3  query or table not supported
    │   ├── QueryError                   3  the SQL text: unknown column, unsupported construct
    │   │   └── NotReadError             3  a construct that impctl does not read, and Spark may
    │   ├── TableError                   3  the Delta table: missing, unreadable feature
    │   ├── UnsafeSketchError            3  the requested attribute is not safe for the query
    │   ├── EvaluationError              3  the query itself fails on a row (overflow, ...)
    │   └── UnsupportedExpressionError   3  an expression that only Spark computes
    ├── OutOfMemoryError                 3  more memory than the limit, or than there is
    ├── PolicyRefusedError               4  policy `strict` forbids what would be needed
    ├── UnsoundSketchError               5  verification found a sketch too small
    ├── RetryableError                   6  try again later
    │   ├── LockHeldError                6  another writer is at work
    │   ├── StorageError                 6  the disk or the object store failed
    │   └── OutputFailedError            6  results or messages could not be written
    ├── InterruptedRunError              130  the run was asked to end
    └── RecaptureNeededError             7  the sketch cannot be maintained any more
        ├── HistoryGoneError             7  change feed or data files needed are gone
        ├── TableRecreatedError          7  another table is at the path now
        ├── LogDiffersError              7  a table's log contradicts itself
        ├── SchemaChangedError           7  a column the query reads changed
        ├── AssumptionBrokenError        7  a fact that made the sketch safe no longer holds
        ├── NotExactError                7  a value depends on an unspecified order
        ├── JoinTooLargeError            7  a change finds too many partners in a join
        ├── StateCorruptError            7  a state file is missing, truncated or altered
        └── CountBelowZeroError          7  the change removes rows the state never saw

    ImpctlWarning                        what a Python call reports beside its results

Law: a message says what happened and where, a hint what to do; no stack trace is needed to act.
Neither contains secrets of a URI (signature, token, password), wherever it comes from.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

INTERRUPTED = 130
"""The exit code of a run that was asked to end: 128 and SIGINT's number, as shells have it."""

# Texts, compiled where the first error is made: most runs have none.
_PASSWORD = r"(?i)([a-z][a-z0-9+.-]{0,31}://)[^\s/?#@:`'\"]*:[^\s/?#`'\"]*@"
_KEY_OF_S3 = r"(?i)(s3[an]?://)[^\s/@:`'\"]+:[^\s@:`'\"]+@"
"""A secret key is written as it is and may contain slashes."""
_USER = r"(?i)(https?://)[^\s/?#@`'\"]+@"
"""A token. In other schemes, what stands before the host may be a container."""
_SIGNED = (
    r"(?i)((?:[?&;#]|%3f|%26)(?:[\w.-]*(?:signature|token|secret|password|credential|api_?key)"
    r"|sig|sas|pwd|key|awsaccesskeyid|googleaccessid|(?:account|access)_?key(?:_?id)?)(?:=|%3d))"
    r"(?:(?!%26)[^\s&;#`'\"<>()])+"
)


def masked(text: str) -> str:
    """Replace signatures, tokens, keys and passwords in the URIs of `text` with `***`."""
    if "://" in text:
        for secret in (_PASSWORD, _KEY_OF_S3, _USER):
            text = re.sub(secret, r"\g<1>***@", text)
    return re.sub(_SIGNED, r"\g<1>***", text)


class Location(Struct, frozen=True):
    """A place in a text: file (or a name for it) with 1-based line and column."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Problem(Struct, frozen=True):
    """One of several things wrong with a text; `WorkloadError` carries all of them."""

    message: str
    location: Location | None = None
    hint: str | None = None


class ImpctlError(Exception):
    """Root of every error impctl raises on purpose.

    `code` is a stable name for machines (snake case), `hint` what the user can do.
    """

    exit_code: int = 1
    default_code: str = "unexpected"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        code: str | None = None,
        location: Location | None = None,
    ) -> None:
        self.message = masked(message)
        super().__init__(self.message)
        self.hint = hint and masked(hint)
        self.code = code if code is not None else self.default_code
        self.location = location

    def at(self, location: Location | None) -> Self:
        """Copy the error with another place; others may hold this one, so it does not change."""
        return self._copy(location=location)

    def saying(self, message: str) -> Self:
        """Copy the error with another message."""
        return self._copy(message=masked(message), args=(masked(message),))

    def hinting(self, hint: str | None) -> Self:
        """Copy the error with another hint."""
        return self._copy(hint=hint and masked(hint))

    def _copy(self, args: tuple[object, ...] | None = None, **changed: object) -> Self:
        """Copy all parts, notes, trace and causes without calling `__init__`, whose parameters
        differ."""
        result = type(self).__new__(type(self))
        result.args = self.args if args is None else args
        vars(result).update(vars(self) | changed)
        if hasattr(self, "__notes__"):
            result.__notes__ = [*self.__notes__]
        result.__context__ = self.__context__
        result.__cause__ = self.__cause__
        result.__suppress_context__ = self.__suppress_context__
        return result.with_traceback(self.__traceback__)


class ImpctlWarning(UserWarning):
    """Something to know about a Python call that did what it was asked to."""


class QueriesFailedError(ImpctlError):
    """Some of several queries failed, after all of them ran.

    `results` are the records of the others, `failures` the errors by query; exit code and hint are
    those of the gravest.
    """

    default_code = "queries_failed"

    def __init__(
        self,
        message: str,
        *,
        results: tuple[Any, ...],
        failures: Mapping[str, ImpctlError],
        gravest: ImpctlError,
    ) -> None:
        super().__init__(message, hint=gravest.hint)
        self.results = results
        self.failures = failures
        self.exit_code = gravest.exit_code


class ProblemsFoundError(ImpctlError):
    default_code = "problems_found"

    def __init__(self, message: str, *, hint: str | None, exit_code: int) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class InvariantError(ImpctlError):
    default_code = "invariant_broken"

    def __init__(self, message: str) -> None:
        super().__init__(
            message, hint="this is a bug in impctl; nothing was changed; please report it"
        )


def is_panic(error: BaseException) -> bool:
    """Whether a native library panicked. Its bindings raise a class that is no `Exception` and is
    not exported."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the system, or a limit of it, refused memory."""
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    )


def out_of_memory(error: BaseException) -> OutOfMemoryError:
    """Make the error for that, and free what the failed calls had computed."""
    import traceback  # takes longer to load than many a command to run

    traceback.clear_frames(error.__traceback__)
    result = OutOfMemoryError(
        "The system has no more memory for this process",
        hint="free memory or raise the limit of the process; "
        "with a smaller `--memory` Spark takes over earlier",
    )
    result.__cause__ = error
    return result


def pass_out_of_memory(error: BaseException) -> None:
    """Raise OutOfMemoryError if memory ran out, before callers take the error for damaged data."""
    if is_out_of_memory(error):
        raise out_of_memory(error) from error


def unexpected(error: BaseException) -> ImpctlError:
    """Wrap an error that nobody raised on purpose, with its first line and how to report it."""
    if is_out_of_memory(error):
        return out_of_memory(error)
    first = (str(error).strip().splitlines() or ["no message"])[0]
    if is_panic(error):
        result = ImpctlError(
            f"A native library failed: {first}",
            code="library_panicked",
            hint="a file of the table may be damaged or have unexpected content; run again with "
            "`-vv` to see the trace",
        )
    else:
        result = ImpctlError(
            f"Unexpected error, {type(error).__name__}: {first}",
            hint="run the command again with `-vv` to see the trace, and report this bug",
        )
    result.__cause__ = error
    return result


OPEN_FILES = frozenset({errno.EMFILE, errno.ENFILE})
"""Error numbers of the limit on open files."""


def with_limit(error: ImpctlError) -> ImpctlError:
    """Return the error, or one about the limit on open files if that is behind it. Callers report
    that limit as whatever they could not open."""
    cause: BaseException | None = error
    while cause is not None:
        is_limit = isinstance(cause, OSError) and cause.errno in OPEN_FILES
        if is_limit or "too many open files" in str(cause).lower():
            result = StorageError(
                f"Too many files are open at the same time: {error.message}",
                code="too_many_open_files",
                hint="raise the limit (`ulimit -n 4096`, or `LimitNOFILE=` of a service), or "
                "select fewer queries (`--query`)",
                location=error.location,
            )
            result.__cause__ = error
            return result
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return error


class UsageError(ImpctlError):
    exit_code = 2
    default_code = "usage"


class WorkloadError(UsageError):
    """The workload file is wrong; `problems` lists everything wrong, in file order."""

    default_code = "workload_invalid"

    def __init__(self, message: str, problems: Sequence[Problem]) -> None:
        super().__init__(message, hint=problems[0].hint, location=problems[0].location)
        self.problems = tuple(
            replace(
                problem, message=masked(problem.message), hint=problem.hint and masked(problem.hint)
            )
            for problem in problems
        )


class UnsupportedError(ImpctlError):
    """A query or table that impctl refuses rather than guesses about."""

    exit_code = 3
    default_code = "unsupported"


class QueryError(UnsupportedError):
    default_code = "query_unsupported"


class NotReadError(QueryError):
    """A construct that impctl does not read. Spark may, so the query can be run unchanged."""


class TableError(UnsupportedError):
    default_code = "table_unsupported"


class UnsafeSketchError(UnsupportedError):
    default_code = "sketch_unsafe"


class EvaluationError(UnsupportedError):
    """A row on which the query itself fails under ANSI rules, as it would in Spark."""

    default_code = "evaluation_failed"


class OutOfMemoryError(ImpctlError):
    exit_code = 3
    default_code = "out_of_memory"


class UnsupportedExpressionError(UnsupportedError):
    default_code = "expression_unsupported"


class PolicyRefusedError(ImpctlError):
    exit_code = 4
    default_code = "policy_refused"


class UnsoundSketchError(ImpctlError):
    """Verification found ranges that the stored sketch lacks, or different results."""

    exit_code = 5
    default_code = "sketch_unsound"


class RetryableError(ImpctlError):
    exit_code = 6
    default_code = "retryable"


class LockHeldError(RetryableError):
    default_code = "lock_held"


class StorageError(RetryableError):
    default_code = "storage_failed"


class OutputFailedError(RetryableError):
    default_code = "output_failed"


class InterruptedRunError(ImpctlError):
    exit_code = INTERRUPTED
    default_code = "interrupted"


class RecaptureNeededError(ImpctlError):
    exit_code = 7
    default_code = "recapture_needed"


class HistoryGoneError(RecaptureNeededError):
    default_code = "history_gone"


class TableRecreatedError(RecaptureNeededError):
    default_code = "table_recreated"


class LogDiffersError(RecaptureNeededError):
    default_code = "log_differs"


class SchemaChangedError(RecaptureNeededError):
    default_code = "schema_changed"


class AssumptionBrokenError(RecaptureNeededError):
    default_code = "assumption_broken"


class NotExactError(RecaptureNeededError):
    """A value that must be fixed is not: a double lies too close to call, or rows tie."""

    default_code = "not_exact"


class JoinTooLargeError(RecaptureNeededError):
    default_code = "join_too_large"


class StateCorruptError(RecaptureNeededError):
    default_code = "state_corrupt"


class CountBelowZeroError(RecaptureNeededError):
    default_code = "count_below_zero"


def count_text(count: int, noun: str, plural: str | None = None) -> str:
    """Format a count, such as `1 change` or `1,000 changes`; `plural` is for nouns that do not add
    an `s`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"

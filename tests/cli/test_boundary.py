"""Errors become exit codes and messages; nothing else does."""

from __future__ import annotations

import pytest

from impctl import errors
from impctl.cli.application import EXIT_CODES
from impctl.errors import ImpctlError, LockHeldError, UnsoundSketchError
from impctl.service.outcome import GRAVITY
from impctl.service.results import Failure, Outcome
from tests.cli.examples import EXAMPLES, VerifyResult


def tree(root: type[ImpctlError] = ImpctlError) -> list[type[ImpctlError]]:
    own = [kind for kind in root.__subclasses__() if kind.__module__ == errors.__name__]
    return [root] + [result for kind in own for result in tree(kind)]


OF_MANY = {errors.WorkloadError, errors.QueriesFailedError, errors.InvariantError}
"""Made of several errors, or with a hint of their own: not raised by a message and a hint."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in tree() if kind not in OF_MANY])
def test_every_error_gives_its_exit_code_and_is_in_the_tables(fake, impctl, kind) -> None:
    fake.answer = kind("It went wrong", hint="do better")
    ran = impctl("maintain", "w.yaml")
    assert (ran.code, ran.stdout) == (kind.exit_code, "")
    assert ran.stderr == f"error: It went wrong [{kind.default_code}]\nhint: do better\n"
    assert kind.exit_code in dict(EXIT_CODES)
    assert kind.exit_code in GRAVITY


def test_gravity_ranks_every_exit_code_once() -> None:
    assert sorted(GRAVITY) == sorted(code for code, _ in EXIT_CODES if code)


def test_an_unexpected_error_is_one_line_and_a_way_to_the_trace(fake, impctl) -> None:
    fake.answer = ZeroDivisionError("division by zero")
    ran = impctl("maintain", "w.yaml")
    assert (ran.code, ran.stdout) == (1, "")
    assert ran.stderr == (
        "error: Unexpected error, ZeroDivisionError: division by zero [unexpected]\nhint: run the "
        "command again with `-vv` to see the trace, and report this bug\n"
    )


def test_very_verbose_shows_the_trace_first(fake, impctl) -> None:
    fake.answer = ZeroDivisionError("division by zero")
    stderr = impctl("maintain", "w.yaml", "-vv").stderr
    trace, _, rest = stderr.partition("\nZeroDivisionError: division by zero\n")
    assert trace.startswith("Traceback (most recent call last):\n")
    assert rest
    assert "error: Unexpected error, ZeroDivisionError" in stderr
    assert "Traceback" not in impctl("maintain", "w.yaml", "-v").stderr


def test_an_interrupt_ends_with_130_and_closes_the_workbench(fake, impctl) -> None:
    fake.answer = KeyboardInterrupt()
    ran = impctl("capture", "w.yaml")
    assert (ran.code, ran.stdout) == (130, "")
    assert ran.stderr.startswith("error: Interrupted [interrupted]\n")
    assert fake.closed == 1


def test_other_queries_are_shown_beside_a_failure(fake, impctl) -> None:
    failure = Failure("q_two", LockHeldError("The store is locked"))
    fake.answer = Outcome((EXAMPLES["maintain"],), (), (failure,))
    ran = impctl("maintain", "w.yaml")
    assert ran.code == 6
    assert ran.stdout.startswith("q_top: exact")
    assert ran.stderr == (
        "error: `q_two`: The store is locked [lock_held]\n1 of 2 queries failed: `q_two`\n"
    )


@pytest.mark.parametrize(
    ("covers", "equal", "code"),
    [(True, None, 0), (True, True, 0), (True, False, 5), (False, None, 5), (False, False, 5)],
)
def test_an_unsound_sketch_never_ends_well(fake, impctl, covers, equal, code: int) -> None:
    missing = () if covers else (1, 2)
    fake.answer = Outcome(
        (
            VerifyResult(
                query="q_top",
                table="sales",
                attribute="price",
                total=4,
                covers=covers,
                slack=0,
                missing=missing,
                extra=(),
                results_equal=equal,
                versions={"sales": 1},
            ),
        )
    )
    ran = impctl("verify", "w.yaml")
    assert ran.code == code
    assert ("NOT SOUND" in ran.stdout) is (code == 5)
    assert ran.stderr.startswith("error: ") is (code == 5)


def test_an_unsound_sketch_is_told_once(fake, impctl) -> None:
    result = VerifyResult(
        query="q_top",
        table="sales",
        attribute="price",
        total=4,
        covers=False,
        slack=0,
        missing=(1,),
        extra=(),
        results_equal=None,
        versions={"sales": 1},
    )
    fake.answer = Outcome((result,), (), (Failure("q_top", UnsoundSketchError("too small")),))
    ran = impctl("verify", "w.yaml")
    assert (ran.code, ran.stderr) == (5, "error: `q_top`: too small [sketch_unsound]\n")


def test_warnings_of_libraries_stay_away_unless_asked_for(fake, impctl, monkeypatch) -> None:
    import warnings

    def warn(*args: object, **kwargs: object) -> Outcome:
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return Outcome((EXAMPLES["status"],))

    import sys

    monkeypatch.setattr(sys.modules["impctl.service.status"], "status", warn)
    monkeypatch.setattr(sys, "warnoptions", [])
    ran = impctl("status", "w.yaml")
    assert (ran.code, ran.stderr) == (0, "")


def test_a_panic_of_a_native_library_is_an_error_with_a_document(fake, impctl) -> None:
    """The real class, of the library that table files' entries come in."""
    import json

    import arro3.core
    import pyarrow as pa

    with pytest.raises(BaseException, match="offset") as caught:
        arro3.core.Array.from_arrow(pa.array([1, 2, 3])).slice(5, 10)
    assert not isinstance(caught.value, Exception)
    fake.answer = caught.value
    ran = impctl("maintain", "w.yaml", "--json")
    assert (ran.code, ran.stderr) == (1, "")
    error = json.loads(ran.stdout)["error"]
    assert error["code"] == "library_panicked"
    assert error["message"].startswith("A native library failed: the offset of")

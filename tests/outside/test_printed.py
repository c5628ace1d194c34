"""Codes as people see them, at the end of the line; and that errors say what can be done."""

from __future__ import annotations

import ast
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl import errors
from impctl.cli.application import build_app
from impctl.cli.boundary import run
from tests.outside.place import Place
from tests.outside.rows import ROWS

ROOT = Path(__file__).parents[2]


def said(place: Place, policy: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `maintain` in text."""
    place.cli.capsys.readouterr()
    code = run(build_app(), ["maintain", str(place.cli.workload), "--policy", policy])
    shown = place.cli.capsys.readouterr()
    return code, shown.out, shown.err


@pytest.fixture
def retyped(place: Place) -> Place:
    rows = ROWS.set_column(1, "x", ROWS["x"].cast(pa.float64()))
    write_deltalake(str(place.table), rows, mode="overwrite", schema_mode="overwrite")
    return place


@pytest.mark.parametrize(
    ("policy", "exit_code", "name"),
    [("incremental", 7, "schema_changed"), ("strict", 4, "policy_refused")],
)
def test_a_refusal(retyped: Place, policy: str, exit_code: int, name: str) -> None:
    code, out, err = said(retyped, policy)
    assert (code, out) == (exit_code, "")
    message, _, hint = " ".join(err.split()).partition(" hint: ")
    assert message.startswith("error: ")
    assert message.endswith(f" [{name}]")
    assert hint


def test_a_recapture(retyped: Place) -> None:
    code, out, err = said(retyped, "auto")
    assert code == 0
    assert "q: recapture t@0..1" in out
    assert "[schema_changed]" in out
    assert "was recaptured: The type of column `x`" in err


def test_every_error_that_asks_for_something_says_what() -> None:
    """Every error of the exit codes 4 and 7 is raised with a hint."""
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type)
        and issubclass(kind, errors.RecaptureNeededError | errors.PolicyRefusedError)
    }
    calls = 0
    places = []
    for path in sorted((ROOT / "impctl").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(f"{name}(" in text for name in kinds):
            continue
        for call in ast.walk(ast.parse(text)):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                continue
            if call.func.id not in kinds:
                continue
            calls += 1
            if "hint" not in [word.arg for word in call.keywords]:
                places.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    assert calls > 15
    assert places == []

"""Files of the store altered, cut, removed or swapped behind impctl's back; text of the errors."""

from __future__ import annotations

import ast
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl import errors
from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.data.pages import PAGE
from impctl.service.settings import SCRUB
from impctl.store import states as states_module
from tests.outside.conftest import FEED
from tests.outside.workspace import (
    KEYED,
    ROWS,
    Workspace,
    expect_exact,
    expect_recapture,
    expect_refused,
    make_workspace,
)
from tests.support.run_cli import Capsys, MadeOnce
from tests.support.sources import texts

GROUPS = 1000
"""Enough for several pages of a state."""


Damage = Callable[[Path], object]


def flip(file: Path) -> None:
    """Flip a bit of every page, since a run checks only the pages it reads."""
    content = bytearray(file.read_bytes())
    for page in range(0, len(content), PAGE):
        content[page + (len(content) - page) // 2 % PAGE] ^= 0x10
    file.write_bytes(content)


def with_content(change: Callable[[bytes], bytes]) -> Damage:
    return lambda file: file.write_bytes(change(file.read_bytes()))


cut = with_content(lambda content: content[:-100])
empty = with_content(lambda _: b"")
grow = with_content(lambda content: content + b"more")
zeros = with_content(lambda _: b"\0" * 8192)


@pytest.fixture
def large_workspace(
    made_once: MadeOnce, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> Workspace:
    """Two queries whose states have equal lengths but different contents."""
    # Damage in states of the other query is not reported.
    monkeypatch.setenv(SCRUB, "0")
    monkeypatch.setattr(states_module, "BLOB_LIMIT", 0)

    def make(folder: Path) -> None:
        columns = [[*range(GROUPS), 5, 5], [9] * (GROUPS + 2), ["n"] * (GROUPS + 2)]
        rows = pa.table(columns, schema=ROWS.schema)
        write_deltalake(str(folder / "t"), rows, configuration=FEED)
        workspace = make_workspace(folder, capsys)
        document = json.loads(workspace.cli.workload.read_text())
        queries = document["queries"]
        queries["other"] = {**queries["q"], "sql": KEYED.replace("SUM(x)", "SUM(x + 1)")}
        workspace.cli.workload.write_text(json.dumps(document))
        workspace.cli.good("capture")
        workspace.append(7, 3, 9)

    # Only `q` is checked from here on.
    return make_workspace(made_once.folder("large", make), capsys)


def states(workspace: Workspace) -> list[Path]:
    result = sorted((workspace.store / "state").iterdir())
    assert len(result) >= 2
    return result


@pytest.mark.slow
def test_undamaged_states_are_used(large_workspace: Workspace) -> None:
    expect_exact(large_workspace, changes=3)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip, cut, empty, grow, Path.unlink])
def test_a_damaged_state_is_recaptured(large_workspace: Workspace, damage: Damage) -> None:
    for file in states(large_workspace):
        damage(file)
    expect_recapture(large_workspace, "state_corrupt", "`q`")


@pytest.mark.slow
def test_scrubbing_finds_damage_in_unused_states(large_workspace: Workspace) -> None:
    long_ago = time.time() - 2 * 86_400
    for file in states(large_workspace):
        flip(file)
        os.utime(file, (long_ago, long_ago))
    warnings = large_workspace.cli.good("maintain", "--policy", "auto", "--scrub", "1").document[
        "warnings"
    ]
    assert any("`other` does not match its checksums" in warning for warning in warnings), warnings


@pytest.mark.slow
def test_swapped_states_of_two_queries_are_detected(large_workspace: Workspace) -> None:
    files = states(large_workspace)
    contents = [file.read_bytes() for file in files]
    assert len(set(contents)) > len(set(map(len, contents)))
    for file, content in zip(files, [*contents[1:], contents[0]], strict=True):
        file.write_bytes(content)
    expect_recapture(large_workspace, "state_corrupt", "`q`")


@pytest.mark.slow
def test_a_restored_older_catalog_is_sound(large_workspace: Workspace, tmp_path: Path) -> None:
    """It refers to deleted states, or is complete for the older version: both are sound."""
    shutil.copytree(large_workspace.store, tmp_path / "older")
    large_workspace.cli.good("maintain")
    for rest in large_workspace.store.glob("catalog.sqlite*"):
        rest.unlink()
    for file in (tmp_path / "older").glob("catalog.sqlite*"):
        shutil.copy(file, large_workspace.store)
    large_workspace.cli.good("maintain")
    large_workspace.check_sound()


def alter(workspace: Workspace, statement: str) -> None:
    connection = sqlite3.connect(workspace.store / "catalog.sqlite")
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sketch SET bits = x'00'",
        "UPDATE pin SET version = version + 1",
        "UPDATE progress SET assumptions = '[]', generation = generation + 1",
        "DELETE FROM sketch",
    ],
)
def test_an_altered_catalog_row_is_detected(workspace: Workspace, statement: str) -> None:
    workspace.append()
    alter(workspace, statement)
    expect_refused(workspace, 7, "catalog_corrupt", "catalog.sqlite")
    for command in (("rewrite", "--require-sketch"), ("status",)):
        ran = workspace.cli(*command)
        assert ran.refusal == (7, "catalog_corrupt")
    assert workspace.cli.good("rewrite").results[0]["sketches"] == []
    # Following the hint helps.
    shutil.move(workspace.store, workspace.folder / "damaged")
    workspace.capture()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip, cut, zeros])
def test_a_damaged_catalog_is_detected_or_harmless(workspace: Workspace, damage: Damage) -> None:
    """A damaged byte may be unused: then the result is right. Otherwise there is an error."""
    workspace.append()
    damage(workspace.store / "catalog.sqlite")
    for ran in workspace.under_each_policy().values():
        assert ran.code == 0 or ran.error["code"] in ("catalog_corrupt", "state_corrupt")


@pytest.mark.slow
def test_an_emptied_catalog_is_a_new_one(workspace: Workspace) -> None:
    empty(workspace.store / "catalog.sqlite")
    assert workspace.cli("maintain", "--policy", "auto").refusal == (7, "not_captured")
    assert workspace.cli("rewrite", "--require-sketch").error["code"] == "not_captured"
    assert workspace.cli.good("rewrite").results[0]["sketches"] == []
    workspace.capture()


def maintain_output(workspace: Workspace, policy: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `maintain` in text."""
    workspace.cli.capsys.readouterr()
    code = run(build_app(), ["maintain", str(workspace.cli.workload), "--policy", policy])
    captured = workspace.cli.capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def retyped(workspace: Workspace) -> Workspace:
    rows = ROWS.set_column(1, "x", ROWS["x"].cast(pa.float64()))
    write_deltalake(str(workspace.table), rows, mode="overwrite", schema_mode="overwrite")
    return workspace


@pytest.mark.parametrize(
    ("policy", "exit_code", "name"),
    [("incremental", 7, "schema_changed"), ("strict", 4, "policy_refused")],
)
def test_text_of_a_refusal(retyped: Workspace, policy: str, exit_code: int, name: str) -> None:
    code, out, err = maintain_output(retyped, policy)
    assert (code, out) == (exit_code, "")
    message, _, hint = " ".join(err.split()).partition(" hint: ")
    assert message.startswith("error: ")
    assert message.endswith(f" [{name}]")
    assert hint


def test_text_of_a_recapture(retyped: Workspace) -> None:
    code, out, err = maintain_output(retyped, "auto")
    assert code == 0
    assert "q: recapture t@0..1" in out
    assert "[schema_changed]" in out
    assert "was recaptured: The type of column `x`" in err


def test_errors_that_need_an_action_have_a_hint() -> None:
    """Every error with exit code 4 or 7 is raised with a hint."""
    base = errors.RecaptureNeededError | errors.PolicyRefusedError
    names = vars(errors).items()
    kinds = {name for name, kind in names if isinstance(kind, type) and issubclass(kind, base)}
    calls = [
        (path, call)
        for path, text in texts().items()
        if any(f"{name}(" in text for name in kinds)
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in kinds
    ]
    without_hint = [
        f"{path}:{call.lineno}"
        for path, call in calls
        if "hint" not in [argument.arg for argument in call.keywords]
    ]
    assert len(calls) > 15
    assert without_hint == []

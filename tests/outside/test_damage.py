"""Files of the store altered, cut, removed or exchanged behind impctl's back; codes as shown."""

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
from tests.outside.place import (
    KEYED,
    ROWS,
    Place,
    expect_carried,
    expect_recapture,
    expect_refused,
    make_place,
)
from tests.support.run_cli import Capsys, MadeOnce
from tests.support.sources import texts

GROUPS = 1000
"""Enough for several pages of a state."""


Damage = Callable[[Path], object]


def flip(file: Path) -> None:
    """A bit of every page, since a run looks at those that it uses."""
    content = bytearray(file.read_bytes())
    for page in range(0, len(content), PAGE):
        content[page + (len(content) - page) // 2 % PAGE] ^= 0x10
    file.write_bytes(content)


def rewritten(change: Callable[[bytes], bytes]) -> Damage:
    return lambda file: file.write_bytes(change(file.read_bytes()))


cut = rewritten(lambda content: content[:-100])
empty = rewritten(lambda _: b"")
grow = rewritten(lambda content: content + b"more")
zeros = rewritten(lambda _: b"\0" * 8192)


@pytest.fixture
def large(made_once: MadeOnce, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Two queries whose states are of equal length: only their contents tell them apart."""
    # What is wrong with the other one's is not to be told.
    monkeypatch.setenv(SCRUB, "0")
    monkeypatch.setattr(states_module, "BLOB_LIMIT", 0)

    def make(folder: Path) -> None:
        columns = [[*range(GROUPS), 5, 5], [9] * (GROUPS + 2), ["n"] * (GROUPS + 2)]
        rows = pa.table(columns, schema=ROWS.schema)
        write_deltalake(str(folder / "t"), rows, configuration=FEED)
        place = make_place(folder, capsys)
        document = json.loads(place.cli.workload.read_text())
        queries = document["queries"]
        queries["other"] = {**queries["q"], "sql": KEYED.replace("SUM(x)", "SUM(x + 1)")}
        place.cli.workload.write_text(json.dumps(document))
        place.cli.good("capture")
        place.append(7, 3, 9)

    # Only `q` is looked at from here on.
    return make_place(made_once.folder("large", make), capsys)


def states(place: Place) -> list[Path]:
    result = sorted((place.store / "state").iterdir())
    assert len(result) >= 2
    return result


@pytest.mark.slow
def test_whole_states_serve(large: Place) -> None:
    expect_carried(large, changes=3)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip, cut, empty, grow, Path.unlink])
def test_a_damaged_state(large: Place, damage: Damage) -> None:
    for file in states(large):
        damage(file)
    expect_recapture(large, "state_corrupt", "`q`")


@pytest.mark.slow
def test_what_no_run_uses_is_told_once_it_was_not_looked_at_for_a_day(large: Place) -> None:
    then = time.time() - 2 * 86_400
    for file in states(large):
        flip(file)
        os.utime(file, (then, then))
    told = large.cli.good("maintain", "--policy", "auto", "--scrub", "1").document["warnings"]
    assert any("`other` does not match its checksums" in warning for warning in told), told


@pytest.mark.slow
def test_states_of_two_queries_exchanged(large: Place) -> None:
    files = states(large)
    contents = [file.read_bytes() for file in files]
    assert len(set(contents)) > len(set(map(len, contents)))
    for file, content in zip(files, [*contents[1:], contents[0]], strict=True):
        file.write_bytes(content)
    expect_recapture(large, "state_corrupt", "`q`")


@pytest.mark.slow
def test_an_older_catalog_put_back(large: Place, tmp_path: Path) -> None:
    """It names states that are gone, or stands for the older version whole: sound either way."""
    shutil.copytree(large.store, tmp_path / "older")
    large.cli.good("maintain")
    for rest in large.store.glob("catalog.sqlite*"):
        rest.unlink()
    for file in (tmp_path / "older").glob("catalog.sqlite*"):
        shutil.copy(file, large.store)
    large.cli.good("maintain")
    large.check_sound()


def alter(place: Place, statement: str) -> None:
    connection = sqlite3.connect(place.store / "catalog.sqlite")
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
def test_an_altered_row_of_the_catalog(place: Place, statement: str) -> None:
    place.append()
    alter(place, statement)
    expect_refused(place, 7, "catalog_corrupt", "catalog.sqlite")
    for command in (("rewrite", "--require-sketch"), ("status",)):
        ran = place.cli(*command)
        assert ran.refusal == (7, "catalog_corrupt")
    assert place.cli.good("rewrite").results[0]["sketches"] == []
    # What the hint says helps.
    shutil.move(place.store, place.folder / "damaged")
    place.captured()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip, cut, zeros])
def test_a_damaged_catalog(place: Place, damage: Damage) -> None:
    """A byte may lie where nobody looks: then the answer is right, else the damage is told."""
    place.append()
    damage(place.store / "catalog.sqlite")
    for ran in place.under_each_policy().values():
        assert ran.code == 0 or ran.error["code"] in ("catalog_corrupt", "state_corrupt")


@pytest.mark.slow
def test_an_emptied_catalog_is_a_new_one(place: Place) -> None:
    empty(place.store / "catalog.sqlite")
    assert place.cli("maintain", "--policy", "auto").refusal == (7, "not_captured")
    assert place.cli("rewrite", "--require-sketch").error["code"] == "not_captured"
    assert place.cli.good("rewrite").results[0]["sketches"] == []
    place.captured()


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
    asking = errors.RecaptureNeededError | errors.PolicyRefusedError
    known = vars(errors).items()
    kinds = {name for name, kind in known if isinstance(kind, type) and issubclass(kind, asking)}
    calls = [
        (path, call)
        for path, text in texts().items()
        if any(f"{name}(" in text for name in kinds)
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in kinds
    ]
    silent = [
        f"{path}:{call.lineno}"
        for path, call in calls
        if "hint" not in [word.arg for word in call.keywords]
    ]
    assert len(calls) > 15
    assert silent == []

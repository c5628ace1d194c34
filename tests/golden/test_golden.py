"""Check that the output of every command matches the records of values and wording.

To record again, see `python -m tests.golden --help`.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from impctl.cli.application import COMMANDS, build_app
from impctl.service import context as sessions
from tests.golden.records import (
    HERE,
    Golden,
    Output,
    Renames,
    filtered,
    json_text,
    text_difference,
    values,
    values_difference,
    wording,
)
from tests.golden.scripts import Worlds, bad_inputs, names, record_of, script_named, scripts


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return Worlds(tmp_path_factory.mktemp("golden"))


def check(name: str, worlds: Worlds) -> None:
    problem = Golden(name).differences(record_of(name, worlds), Renames.load())
    if problem:
        pytest.fail(problem, pytrace=False)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "triggers" else ())
        for name in names(spark=False)
    ],
)
def test_output_matches_the_record(
    name: str, worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(name)
    # Estimates include the start of Spark unless another test has started it in this process.
    monkeypatch.setattr(sessions.OwnSession, "is_running", False)
    check(name, worlds)


@pytest.mark.spark
@pytest.mark.parametrize("name", names(spark=True))
def test_output_with_spark_matches_the_record(
    name: str, worlds: Worlds, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(name)
    monkeypatch.setattr(sessions.OwnSession, "is_running", False)
    check(name, worlds)


def needs(name: str) -> None:
    """Skip a script that cannot run because an optional package is missing."""
    if name in {script.name for script in scripts()}:
        for package in script_named(name).needs:
            pytest.importorskip(package)


def test_there_are_no_stale_records() -> None:
    expected = {*names(spark=False), *names(spark=True)}
    assert {file.stem for file in (HERE / "values").iterdir()} == expected
    assert {file.stem for file in (HERE / "wording").iterdir()} == expected


def test_every_command_and_option_is_run_or_excused() -> None:
    lines = [shlex.split(step.run) for script in scripts() for step in script.steps if step.run]
    lines += [shlex.split(case.run) for case in bad_inputs()]
    run = {(words[0], word) for words in lines for word in words[1:] if word.startswith("--")}
    excuses = yaml.safe_load((HERE / "not-run.yaml").read_text(encoding="utf-8"))
    single = {(name, option) for name, some in excuses["one command"].items() for option in some}
    run_somewhere = {option for _, option in run}
    excused = {*excuses["any command"], *run_somewhere.intersection(excuses["shared"])}
    missing = {(name, option) for name, option in options() - run - single if option not in excused}
    assert {words[0] for words in lines} >= set(COMMANDS)
    assert not missing, f"add these to a script or to not-run.yaml: {sorted(missing)}"
    assert not single & run, "these are run: remove them from not-run.yaml"
    assert single <= options(), "these options no longer exist"


def options() -> set[tuple[str, str]]:
    """Return every option of every command."""
    group: Any = typer.main.get_command(build_app())
    context = group.context_class(group, info_name="impctl")
    return {
        (name, max(param.opts, key=len))
        for name in COMMANDS
        for param in group.get_command(context, name).get_params(context)
        if param.param_type_name == "option"
    }


def test_help_of_every_command_has_an_example_and_fits_80_columns() -> None:
    text = Golden("help").wording.read_text(encoding="utf-8")
    for command in COMMANDS:
        _, _, usage = text.partition(f"\n$ impctl {command} --help\n")
        usage = usage.partition("\n\n\n")[0]
        assert usage.startswith(f"Usage: impctl {command} "), command
        assert f"\n  Example:\n    impctl {command} " in usage, command
    assert max(map(len, text.splitlines())) <= 80


def test_at_least_sixty_bad_inputs_are_refused() -> None:
    recorded = json.loads(Golden("bad-inputs").values.read_text(encoding="utf-8"))
    assert len(recorded) == len(bad_inputs()) >= 60
    for name, forms in recorded.items():
        assert forms["text"]["exit"] == forms["json"]["exit"] != 0, name
        assert forms["text"]["stderr"], name
        assert not forms["json"]["stderr"], name


# The comparison itself ----------------------------------------------------------------------------

DOCUMENT = (
    '{"command": "status", "results": [{"query": "q", "elapsed_ms": 12.5, "versions": {"t": 3}, '
    '"reason": "nothing changed", "steps": [{"action": "asked"}], "rows": [[1, "a"]]}]}'
)
NONE = Renames({}, {})


def output(document: str) -> Output:
    return Output(("status", "w.yaml", "--json"), 0, document, "")


def difference(new: str, renames: Renames = NONE) -> str:
    return values_difference(values(output(DOCUMENT)), values(output(new)), renames)


def test_values_exclude_prose_and_wording_keeps_it() -> None:
    (document,) = values(output(DOCUMENT))["documents"]
    assert document["results"] == [
        {
            "query": "q",
            "elapsed_ms": "<time>",
            "versions": {"t": 3},
            "reason": "<prose>",
            "steps": [{"action": "asked"}],
            "rows": [[1, "a"]],
        }
    ]
    prose = wording(output(DOCUMENT)).splitlines()[1:]
    assert prose == ["status.results.reason: nothing changed"]
    assert wording(output(DOCUMENT), known="q: nothing\n  changed") == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"query": "q", "elapsed_ms": 12.5', '"elapsed_ms": 7, "query": "q"'),
        ('"nothing changed"', '"no change"'),
    ],
)
def test_the_order_of_keys_times_and_prose_are_not_values(old: str, new: str) -> None:
    assert not difference(DOCUMENT.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"t": 3}', '{"t": 4}'),
        ('"asked"', '"requested"'),
        ('"query": "q", ', ""),
        ('"query": "q", ', '"query": "q", "more": null, '),
        ('[[1, "a"]]', '[[1, "b"]]'),
        ('"elapsed_ms": 12.5', '"elapsed_ms": null'),
        ('"nothing changed"', '""'),
    ],
)
def test_every_other_change_is_found(old: str, new: str) -> None:
    assert difference(DOCUMENT.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "renames"),
    [
        ('"steps"', '"runs"', Renames({"steps": "runs"}, {})),
        ('"action"', '"kind"', Renames({"steps.action": "kind"}, {})),
        ('"versions": {"t": 3}, ', "", Renames({"results.versions": None}, {})),
        ('"asked"', '"requested"', Renames({}, {"asked": "requested"})),
    ],
)
def test_a_rename_makes_old_and_new_values_equal(old: str, new: str, renames: Renames) -> None:
    changed = DOCUMENT.replace(old, new)
    assert difference(changed)
    assert not difference(changed, renames)
    assert difference(changed.replace('"q"', '"r"'), renames)


def test_a_rename_of_an_inner_key_leaves_other_keys_alone() -> None:
    assert difference(DOCUMENT, Renames({"steps.action": "kind"}, {}))
    assert not difference(DOCUMENT, Renames({"results.action": "kind"}, {}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,026 changes in 1,234 ms (read 9.1 ms)", "1,026 changes in <time> (read <time>)"),
        ("version 0, s has 3 rows, 1.2 kB of 3 MB", "version 0, s has 3 rows, <size> of <size>"),
        ("at 2026-11-28 19:04:35Z, now = 2024-05-17", "at <moment>, now = 2024-05-17"),
        ("a   b\n─────\n1   0.12345678901234", "a  b\n────\n1  0.123456789"),
    ],
)
def test_measured_quantities_are_filtered(text: str, expected: str) -> None:
    assert filtered(text) == expected


def test_paths_are_filtered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert filtered(f"{tmp_path}/t of {HERE}") == "<folder>/t of <root>/tests/golden"


@pytest.mark.parametrize("packed", [True, False])
def test_formatted_json_is_equivalent(packed: bool) -> None:
    value = {"a": [1, 2.5, None, "x" * 90], "b": {"c": ["y" * 30] * 4}, "d": [], "e": {}}
    assert json.loads(json_text(value, packed=packed)) == value


def test_a_difference_shows_recorded_and_new_lines() -> None:
    lines = text_difference("a\nb\n", "a\nc\n").splitlines()
    assert lines[-3:] == [" a", "-b", "+c"]

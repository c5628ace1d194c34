"""Everything that users see is as it was recorded: values exactly, texts as long as they are meant.

`python -m tests.golden` records again; `transcript` says what is compared, `scripts` what is run.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from impctl.cli.application import COMMANDS, build_app
from tests.golden.recorded import Recorded, names, record_of
from tests.golden.scripts import bad_inputs, scripts
from tests.golden.transcript import (
    HERE,
    Printed,
    Renames,
    filtered,
    pretty,
    values,
    values_difference,
    wording,
)
from tests.golden.worlds import Worlds

NO_RENAMES = Renames({}, {})


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return Worlds(tmp_path_factory.mktemp("golden"))


def check(name: str, worlds: Worlds) -> None:
    differences = Recorded(name).differences(record_of(name, worlds), Renames.load())
    if differences:
        pytest.fail(differences, pytrace=False)


@pytest.mark.parametrize("name", names(spark=False))
def test_output_is_as_recorded(name: str, worlds: Worlds) -> None:
    check(name, worlds)


@pytest.mark.spark
@pytest.mark.parametrize("name", names(spark=True))
def test_output_with_spark_is_as_recorded(name: str, worlds: Worlds, spark: Any) -> None:
    check(name, worlds)


def test_every_record_is_of_something() -> None:
    recorded = {*names(spark=False), *names(spark=True)}
    assert {file.stem for file in (HERE / "values").glob("*")} == recorded
    assert {file.stem for file in (HERE / "wording").glob("*")} == recorded


def test_every_command_and_every_option_is_run() -> None:
    """Or named in `not-run.yaml`, with the reason."""
    lines = [shlex.split(step.run) for script in scripts() for step in script.steps if step.run]
    lines += [shlex.split(case.run) for case in bad_inputs()]
    run = {(words[0], word) for words in lines for word in words[1:] if word.startswith("--")}
    group: Any = typer.main.get_command(build_app())
    context = group.context_class(group, info_name="impctl")
    options = {
        (name, max(param.opts, key=len))
        for name in COMMANDS
        for param in group.get_command(context, name).get_params(context)
        if param.param_type_name == "option"
    }
    entries = yaml.safe_load((HERE / "not-run.yaml").read_text(encoding="utf-8"))
    alone = {(name, option) for name, some in entries["of one command"].items() for option in some}
    run_somewhere = {option for _, option in run}
    excused = {*entries["left to others"], *run_somewhere.intersection(entries["shared"])}
    missing = {one for one in options - run - alone if one[1] not in excused}
    assert {words[0] for words in lines} >= set(COMMANDS)
    assert not missing, f"add these to a script or to not-run.yaml: {sorted(missing)}"
    assert not alone & run, "these are run, so take them out of not-run.yaml"
    assert alone <= options, "these are no options any more"


def test_sixty_bad_inputs_and_all_are_refused() -> None:
    recorded = Recorded("bad-inputs").values.read_text(encoding="utf-8")
    assert len(bad_inputs()) >= 60
    assert '"exit": 0' not in recorded
    assert "Traceback" not in Recorded("bad-inputs").wording.read_text(encoding="utf-8")


# How records are made and compared ----------------------------------------------------------------


def printed(document: str) -> Printed:
    return Printed(("status", "w.yaml", "--json"), 0, document, "")


OLD = """{"command": "status", "results": [
{"query": "q", "elapsed_ms": 12.5, "versions": {"t": 3}, "reason": "nothing is kept",
"steps": [{"action": "asked", "ms": 1}], "rows": [[1, "a"]]}]}""".replace("\n", "")


def test_values_hold_what_must_stay_and_placeholders_for_the_rest() -> None:
    (document,) = values(printed(OLD))["documents"]
    (result,) = document["results"]
    assert result == {
        "query": "q",
        "elapsed_ms": "<time>",
        "versions": {"t": 3},
        "reason": "<prose>",
        "steps": [{"action": "asked", "ms": 1}],
        "rows": [[1, "a"]],
    }
    assert wording(printed(OLD)).splitlines()[1:] == ["status.results.reason: nothing is kept"]
    assert wording(printed(OLD), "q: nothing\n  is kept") == ""


def test_renamed_keys_and_codes_are_the_same_values_and_nothing_else_is() -> None:
    new = OLD.replace('"steps"', '"runs"').replace('"asked"', '"requested"')
    recorded, present = values(printed(OLD)), values(printed(new))
    renames = Renames({"steps": "runs"}, {"asked": "requested"})
    assert not values_difference(recorded, present, renames)
    difference = values_difference(recorded, present, NO_RENAMES)
    assert re.search(r'^-.*"steps"', difference, re.MULTILINE)
    assert re.search(r'^\+.*"runs"', difference, re.MULTILINE)
    # A key inside another one, and a key that is gone.
    inner = Renames({"steps.action": "kind", "results.versions": None}, {})
    new = OLD.replace('"action"', '"kind"').replace('"versions": {"t": 3}, ', "")
    assert not values_difference(recorded, values(printed(new)), inner)
    # The name of a table is not renamed with a key that has the same letters elsewhere.
    assert values_difference(recorded, recorded, Renames({"steps.t": "u"}, {})) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"t": 3}', '{"t": 4}'),
        ('"asked"', '"requested"'),
        ('"query": "q", ', ""),
        ('"query": "q", ', '"query": "q", "more": null, '),
        ('[[1, "a"]]', '[[1, "b"]]'),
    ],
)
def test_any_other_change_is_a_difference(old: str, new: str) -> None:
    present = values(printed(OLD.replace(old, new)))
    assert values_difference(values(printed(OLD)), present, NO_RENAMES)


def test_the_order_of_keys_and_the_measured_time_are_no_difference() -> None:
    new = OLD.replace('"query": "q", "elapsed_ms": 12.5', '"elapsed_ms": 7, "query": "q"')
    assert not values_difference(values(printed(OLD)), values(printed(new)), NO_RENAMES)


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("1,026 changes in 1,234 ms (read 9.1 ms)", "1,026 changes in <time> (read <time>)"),
        ("version 0, s has 3 rows, 1.2 kB of 3 MB", "version 0, s has 3 rows, <size> of <size>"),
        ("at 2026-11-28 19:04:35Z, now = 2024-05-17", "at <moment>, now = 2024-05-17"),
        ("a   b\n─────\n1   0.12345678901234", "a  b\n────\n1  0.123456789"),
    ],
)
def test_measured_quantities_are_filtered_wherever_they_stand(text: str, without: str) -> None:
    assert filtered(text) == without


def test_paths_are_those_of_no_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert filtered(f"{tmp_path}/t of {HERE}") == "<folder>/t of <root>/tests/golden"


def test_files_hold_the_same_as_differences_show() -> None:
    value = {"a": [1, 2.5, None, "x" * 90], "b": {"c": ["y" * 30] * 4}, "d": [], "e": {}}
    for form in (pretty(value), pretty(value, packed=True)):
        assert json.loads(form) == value
        assert max(map(len, form.splitlines())) <= 110

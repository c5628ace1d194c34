"""Groups of `--help`, on a real terminal and in a pipe."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pexpect
import pytest
import typer

from impctl.cli.application import (
    COMMAND_GROUPS,
    COMMANDS,
    OPTION_GROUPS,
    OPTIONS,
    build_app,
    sections,
)
from impctl.cli.boundary import run
from tests.cli.test_loaded import loaded_by
from tests.cli.test_main import start

PANEL = re.compile(r"^╭─ (.*?) ─+╮$", re.MULTILINE)
HEADING = re.compile(r"^(?!Usage)(\S.*):$", re.MULTILINE)
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def contexts() -> Iterator[tuple[str, Any, Any]]:
    root: Any = typer.main.get_command(build_app())
    context = root.context_class(root, info_name="impctl")
    yield "impctl", root, context
    for name, command in root.commands.items():
        yield name, command, command.context_class(command, info_name=name, parent=context)


ALL = {name: (command, context) for name, command, context in contexts()}


def on_terminal(*words: str, columns: int = 80, **variables: str) -> str:
    """The help as a terminal of so many columns gets it."""
    outside = {"COLUMNS", "NO_COLOR", "FORCE_COLOR"}
    environment = {name: value for name, value in os.environ.items() if name not in outside}
    environment |= {"TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    process = pexpect.spawn(
        sys.executable,
        ["-P", "-m", "impctl", *words, "--help"],
        env=environment,
        dimensions=(50, columns),
        encoding="utf-8",
        timeout=120,
    )
    return str(process.read()).replace("\r\n", "\n")


def groups_of(name: str) -> list[str]:
    return [title for part in sections(*ALL[name]) for title, _ in part]


def test_the_groups_of_commands() -> None:
    assert sorted(chain.from_iterable(COMMAND_GROUPS.values())) == sorted(COMMANDS)
    assert groups_of("impctl") == [*COMMAND_GROUPS, OPTIONS]


@pytest.mark.parametrize("name", ALL)
def test_every_entry_is_in_one_group_and_says_what_it_is(name: str) -> None:
    command, context = ALL[name]
    of_commands, of_options = sections(command, context)
    names = [entry for _, rows in of_options for entry, _ in rows]
    params = command.get_params(context)
    assert len(names) == len(set(names)) == len(params)
    texts = [text for _, rows in [*of_commands, *of_options] for _, text in rows]
    assert all(len(text) > 10 for text in texts)
    shown = groups_of(name)
    assert shown == sorted(shown, key=[*COMMAND_GROUPS, *OPTION_GROUPS, OPTIONS].index)
    ungrouped = [param.name for param in params if not param.rich_help_panel] if of_options else []
    assert name == "impctl" or ungrouped == ["help"]


@pytest.mark.parametrize("name", ALL)
def test_choices_and_defaults_are_in_the_text(name: str) -> None:
    command, _ = ALL[name]
    for param in command.params:
        described = getattr(param, "type_descriptor", None) or param.type
        for choice in getattr(described, "choices", None) or ():
            assert re.search(rf"\b{getattr(choice, 'value', choice)}\b", param.help), param.name
        default = getattr(param.default, "value", param.default)
        if isinstance(default, str | int) and default not in (True, False, 0):
            assert f"Default: {default}." in param.help, param.name


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1", "TERM": "xterm-256color"}])
@pytest.mark.parametrize("words", [(), ("maintain",), ("bench",)], ids=" ".join)
def test_a_pipe_gets_plain_headings(words: tuple[str, ...], variables: dict[str, str]) -> None:
    shown = start(*words, "--help", **variables).stdout
    assert shown.isascii()
    assert "\x1b" not in shown
    assert HEADING.findall(shown) == groups_of(words[0] if words else "impctl")


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_headings_of_every_command(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(build_app(), [command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert "\x1b" not in shown
    assert HEADING.findall(shown) == groups_of(command)


@pytest.mark.parametrize("columns", [40, 80, 140, 200])
@pytest.mark.parametrize("words", [(), ("maintain",)], ids=" ".join)
def test_a_terminal_gets_panels_as_wide_as_it_is(words: tuple[str, ...], columns: int) -> None:
    shown = ESCAPE.sub("", on_terminal(*words, columns=columns))
    assert PANEL.findall(shown) == groups_of(words[0] if words else "impctl")
    widths = {len(line) for line in shown.splitlines() if line.startswith(("╭", "│", "╰"))}
    assert widths == {min(columns, 140)}


def test_a_terminal_and_a_pipe_get_the_same_words() -> None:
    piped = re.sub(HEADING, r"\1", start("query", "--help").stdout)
    drawn = re.sub(r"[╭╮╰╯│─]", " ", ESCAPE.sub("", on_terminal("query")))
    assert drawn.split() == piped.split()


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_escape_codes_where_they_are_not_wanted(variables: dict[str, str]) -> None:
    shown = on_terminal("status", **variables)
    assert "\x1b" not in shown
    result = HEADING.findall(shown) if "TERM" in variables else PANEL.findall(shown)
    assert result == groups_of("status")


def test_text_has_the_colour_of_the_terminal() -> None:
    """Bold is used, but nothing dim and no background; only borders have a colour."""
    shown = on_terminal("status")
    codes = set(chain.from_iterable(c[2:-1].split(";") for c in ESCAPE.findall(shown)))
    assert codes == {"0", "1", "39", "36"}
    coloured = re.findall(r"\x1b\[36m([^\x1b]*)", shown)
    assert not [part for part in coloured if re.search(r"\w", part)]


@pytest.mark.parametrize("words", [("--help",), ("maintain", "--help")], ids=" ".join)
def test_help_in_a_pipe_does_not_load_rich(words: tuple[str, ...], tmp_path: Any) -> None:
    loaded = loaded_by(tmp_path, *words)
    assert not [name for name in loaded if name.partition(".")[0] in ("rich", "markdown_it")]

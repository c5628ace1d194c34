"""Values that go past Typer's check are those that it would have given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from impctl.cli.application import COMMANDS, _Plain, build_app
from impctl.service.settings import Policy

coercion = pytest.importorskip("typer._coercion", reason="another Typer checks in another way")


def flags(command: str) -> list[Any]:
    # Not `get_command`, which tests share: a flag that left a value to Typer once leaves it all.
    group: Any = typer.main.get_group(build_app([command]))
    context = typer.Context(group)
    parsed = group.commands[command]
    return [*group.get_params(context), *parsed.get_params(typer.Context(parsed))]


def outcome(by: Any, value: Any, flag: Any, context: Any) -> Any:
    """What the value becomes, with its type, or how that fails."""
    try:
        coerce = by.coerce(value, flag, context)
    except Exception as error:  # noqa: BLE001  # whatever it is, the other one must do the same
        return type(error), str(error)
    return type(coerce), coerce


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_flag_gets_what_typer_would_give_it(command: str, tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("x")
    values = [None, "", "text", "3", "-1", 0, 5, -1, 1.5, True, [], ["a", "b"], ("a",), [1]]
    values += [
        str(file),
        file,
        str(tmp_path),
        str(tmp_path / "none"),
        "-",
        Policy.AUTO,
        "auto",
        "AUTO",
        "csv",
        "never",
    ]
    checked = 0
    for flag in flags(command):
        assert isinstance(flag._runtime_param, _Plain)
        context = typer.Context(typer.main.get_command(build_app([command])))
        own = coercion.build_runtime_param(flag.type_descriptor)
        for value in values:
            result, wanted = (outcome(by, value, flag, context) for by in (_Plain(flag), own))
            assert result == wanted, (flag.name, value)
            checked += 1
    assert checked >= len(values)


def test_a_file_that_cannot_be_read_is_refused_in_typers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("x")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    flag = next(flag for flag in flags("check") if flag.name == "workload")
    context = typer.Context(typer.main.get_command(build_app(["check"])))
    with pytest.raises(typer.BadParameter, match="is not readable"):
        _Plain(flag).coerce(str(file), flag, context)

"""The command line, called in this process: exit code, document, and what was said on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from impctl.cli.application import build_app
from impctl.cli.boundary import run

Capsys = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Ran:
    """One call: its exit code, its JSON document, its stderr."""

    code: int
    document: dict[str, Any]
    stderr: str

    @property
    def results(self) -> list[dict[str, Any]]:
        result = self.document["results"]
        assert isinstance(result, list)
        return result

    @property
    def error(self) -> dict[str, Any]:
        result = self.document["error"]
        assert isinstance(result, dict), self.document
        return result

    @property
    def refusal(self) -> tuple[int, str]:
        """The exit code, and the code of the error."""
        return self.code, self.error["code"]


class Cli:
    """Runs `impctl COMMAND WORKLOAD --json ...` and reads the one document it prints."""

    def __init__(self, capsys: Capsys, workload: Path) -> None:
        self.capsys = capsys
        self.workload = workload

    @classmethod
    def over(cls, capsys: Capsys, folder: Path, workload: str) -> Cli:
        """Over a workload file with this text, in a folder."""
        file = folder / "w.yaml"
        file.write_text(workload)
        return cls(capsys, file)

    def __call__(self, command: str, *arguments: str) -> Ran:
        self.capsys.readouterr()
        code = run(build_app(), [command, str(self.workload), "--json", *arguments])
        shown = self.capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err
        return Ran(code, json.loads(shown.out), shown.err)

    def good(self, command: str, *arguments: str) -> Ran:
        """The same, where nothing may go wrong."""
        ran = self(command, *arguments)
        assert ran.code == 0, ran.document
        return ran

    def one(self, command: str, *arguments: str) -> dict[str, Any]:
        """The only result of a command that goes well."""
        (result,) = self.good(command, *arguments).results
        return result

    def text(self, command: str, *options: str) -> str:
        """What people read on stdout, each stretch of space as one."""
        self.capsys.readouterr()
        assert run(build_app(), [command, str(self.workload), *options]) == 0
        return " ".join(self.capsys.readouterr().out.split())

    def edit(self, before: str, after: str, count: int = -1) -> None:
        """Change what the workload file says."""
        text = self.workload.read_text()
        assert before in text
        self.workload.write_text(text.replace(before, after, count))

    def captured(self, *options: str) -> Cli:
        """This workload, after a capture."""
        self.good("capture", *options)
        return self

    def verified(
        self, *, may_slack: str = "", may_tie: str = "", is_exact: bool = True
    ) -> list[dict[str, Any]]:
        """What Spark says of all sketches: no range is missing, none is there in vain where it
        `is_exact`, and answers are those without; but for the queries that are named."""
        results = self.good("verify", "--results").results
        for result in results:
            assert result["covers"], result
            assert not is_exact or result["slack"] == 0 or result["query"] == may_slack, result
            assert result["results_equal"] is True or result["query"] == may_tie, result
        return results


CliOf = Callable[[str], Cli]


@pytest.fixture
def cli_of(tmp_path: Path, capsys: Capsys) -> CliOf:
    """The command line over a workload of a text, in the folder of the test."""

    return partial(Cli.over, capsys, tmp_path)

"""The command line, called in this process: exit code, document, and what was said on stderr."""

from __future__ import annotations

import json
from dataclasses import dataclass
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
        found = self.document["results"]
        assert isinstance(found, list)
        return found

    @property
    def error(self) -> dict[str, Any]:
        found = self.document["error"]
        assert isinstance(found, dict), self.document
        return found


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

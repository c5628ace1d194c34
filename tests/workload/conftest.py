"""Loading a workload from text, and the list of its problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from impctl.errors import WorkloadError
from impctl.workload.load import load_workload
from impctl.workload.models import Workload

Load = Callable[..., Workload]
Problems = Callable[..., list[str]]

HEAD = """\
version: 1
tables: {sales: {path: data/sales}, stores: {path: data/stores}}
queries: {q: {sql: SELECT 1}}
"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads text as a workload file in a temporary folder."""

    def load_text(text: str, env: Mapping[str, str] | None = None) -> Workload:
        path = tmp_path / "w.yaml"
        path.write_text(text, encoding="utf-8", newline="")
        return load_workload(path, env or {})

    return load_text


@pytest.fixture
def problems(load: Load) -> Problems:
    """The problems of a text as `line:column message | hint`; fails if there are none."""

    def problems_of(text: str, env: Mapping[str, str] | None = None) -> list[str]:
        with pytest.raises(WorkloadError) as caught:
            load(text, env)
        assert caught.value.problems, "the error lists no problems"
        assert all(p.hint and p.location for p in caught.value.problems)
        return [
            f"{p.location.line}:{p.location.column} {p.message} | {p.hint}"
            for p in caught.value.problems
            if p.location is not None
        ]

    return problems_of


@pytest.fixture
def extra_problems(problems: Problems) -> Problems:
    """The problems of a section after a valid head; lines are counted from the section."""

    def problems_of(section: str, env: Mapping[str, str] | None = None) -> list[str]:
        skipped = HEAD.count("\n")
        result = []
        for problem in problems(HEAD + section, env):
            line, rest = problem.split(":", 1)
            result.append(f"{int(line) - skipped}:{rest}")
        return result

    return problems_of


@pytest.fixture
def load_extra(load: Load) -> Load:
    """Loads a section after a valid head."""

    def load_section(section: str, env: Mapping[str, str] | None = None) -> Workload:
        return load(HEAD + section, env)

    return load_section

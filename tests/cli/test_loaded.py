"""What a process of a command loads: no library that it does not need, however it got there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.cli.application import build_app
from impctl.cli.boundary import run

WORKLOAD = """
version: 1
tables: {t: {path: t}}
partitions: {t: {a: {boundaries: [2, 4, 6]}}}
queries:
  q: {sql: "SELECT a, SUM(b) AS total FROM t GROUP BY a HAVING SUM(b) > 10", sketch: {t: a}}
"""
TOLD = """
import atexit, os, sys
atexit.register(lambda: os.write(3, "\\n".join(sys.modules).encode()))
from impctl.cli.main import main
main()
"""
NEVER = {"pandas", "pydantic", "rich", "pyspark", "duckdb", "pyarrow.dataset"}
"""What no command loads that maintains without Spark and prints no table of rows."""


def rows(*pairs: tuple[int, int]) -> pa.Table:
    return pa.table({"a": [a for a, _ in pairs], "b": [b for _, b in pairs]})


def captured_in(folder: Path, workload: str = WORKLOAD) -> Path:
    write_deltalake(
        folder / "t",
        rows((1, 20), (3, 5), (5, 30)),
        configuration={"delta.enableChangeDataFeed": "true"},
    )
    (folder / "impctl.yaml").write_text(workload)
    assert run(build_app(), ["capture", str(folder / "impctl.yaml"), "--quiet"]) == 0
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return captured_in(tmp_path)


@pytest.fixture(scope="module")
def up_to_date(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For runs that have nothing to do, so that they change nothing."""
    return captured_in(tmp_path_factory.mktemp("captured"))


def loaded_by(folder: Path, *words: str) -> set[str]:
    """The modules that a command had loaded when it ended well."""
    read, write = os.pipe()
    code = f"import os; os.dup2({write}, 3); {TOLD.strip()}".replace("; import", "\nimport", 1)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("IMPCTL_")}
    ran = subprocess.Popen(
        [sys.executable, "-P", "-c", code, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[write],
    )
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read().decode()
    _, complaints = ran.communicate()
    assert ran.returncode == 0, complaints.decode()
    return set(told.split())


@pytest.mark.parametrize(
    "words",
    [["maintain"], ["maintain", "--json"], ["status"], ["maintain", "--due"], ["plan", "--due"]],
)
def test_a_run_with_nothing_to_do_loads_neither_parser_nor_engine(
    up_to_date: Path, words: list[str]
) -> None:
    loaded = loaded_by(up_to_date, *words)
    assert "deltalake" in loaded
    assert loaded & {*NEVER, "sqlglot", "pyarrow.compute", "pyarrow.fs"} == set()
    assert not [name for name in loaded if name.startswith(("impctl.engine", "impctl.compile"))]


def test_nor_does_a_run_with_nothing_due(folder: Path) -> None:
    file = folder / "impctl.yaml"
    file.write_text(
        file.read_text().replace("sketch: {t: a}", "sketch: {t: a}, trigger: {rows: 9}")
    )
    write_deltalake(folder / "t", rows((3, 50)), mode="append")
    loaded = loaded_by(folder, "maintain", "--due")
    assert loaded & {*NEVER, "sqlglot", "pyarrow.compute", "pyarrow.fs"} == set()
    assert not [name for name in loaded if name.startswith(("impctl.engine", "impctl.compile"))]


def test_a_run_that_maintains_loads_nothing_that_it_does_not_use(folder: Path) -> None:
    write_deltalake(folder / "t", rows((3, 50)), mode="append")
    loaded = loaded_by(folder, "maintain")
    assert "impctl.engine.aggregate" in loaded
    assert loaded & NEVER == set()
    DeltaTable(folder / "t").delete("a = 1")
    assert loaded_by(folder, "maintain") & NEVER == set()


def test_a_command_builds_itself_alone(up_to_date: Path) -> None:
    loaded = {name for name in loaded_by(up_to_date, "status") if "cli.commands." in name}
    assert loaded == {"impctl.cli.commands.overview"}


def test_a_materialized_result_is_read_without_parser_and_circuits(tmp_path: Path) -> None:
    captured_in(tmp_path, WORKLOAD.replace("sketch: {t: a}", "sketch: {t: a}, answer: true"))
    loaded = loaded_by(tmp_path, "query")
    assert "impctl.engine.result_rows" in loaded
    assert loaded & {*NEVER, "sqlglot", "impctl.compile.compile", "impctl.capture"} == set()

"""Paths are as seen from the workload file, whatever the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.workload.load import load_workload
from impctl.workload.paths import resolve_path

from .conftest import HEAD, Load, Problems


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("data/sales", "/base/data/sales"),
        ("./data//sales/", "/base/data/sales"),
        ("../demo/sales", "/demo/sales"),
        ("/abs/x/../y", "/abs/y"),
        ("s3://bucket/a/../b", "s3://bucket/a/../b"),
        ("abfss://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/t"),
        ("file:///x/y", "file:///x/y"),
        ("odd:name", "/base/odd:name"),
        ("a b/ü", "/base/a b/ü"),
    ],
)
def test_relative_paths_start_at_the_file_and_uris_pass(written: str, expected: str) -> None:
    assert resolve_path(Path("/base"), written) == expected


def test_the_working_directory_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "flows"
    folder.mkdir()
    (folder / "w.yaml").write_text(HEAD)
    monkeypatch.chdir(tmp_path)
    relative = load_workload(Path("flows/w.yaml"), {})
    monkeypatch.chdir(folder)
    near = load_workload(Path("w.yaml"), {})
    assert relative.tables["sales"].path == near.tables["sales"].path
    assert relative.tables["sales"].path == str(folder / "data" / "sales")
    assert relative.store == near.store == str(folder / ".impctl")
    assert relative.file == "flows/w.yaml"


def test_no_table_is_looked_at(load: Load) -> None:
    workload = load(HEAD.replace("data/sales", "/nowhere/at/all"))
    assert workload.tables["sales"].path == "/nowhere/at/all"


def test_a_path_from_a_variable(load: Load, problems: Problems) -> None:
    text = HEAD.replace("data/sales", "'${ROOT:-../demo}/sales'")
    assert load(text).tables["sales"].path.endswith("/demo/sales")
    assert load(text, {"ROOT": "s3://b"}).tables["sales"].path == "s3://b/sales"
    assert "control character" in problems(text, {"ROOT": "a\nb"})[0]

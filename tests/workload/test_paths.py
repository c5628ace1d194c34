"""Paths are as seen from the workload file, whatever the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.errors import WorkloadError
from impctl.workload.load import load_workload
from impctl.workload.sections import resolve_path, why_no_store

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


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("s3://bucket/sketches", "only tables can be in an object store"),
        ("abfss://c@a.dfs.core.windows.net/s", "only tables can be in an object store"),
        ("hdfs:///sketches", "only tables can be in an object store"),
        ("S3A:/bucket", "only tables can be in an object store"),
        ("file:///srv/sketches", "write the path: /srv/sketches"),
    ],
)
def test_a_store_at_a_uri_is_refused(load: Load, written: str, hint: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        load(HEAD + f"store: {written}\n")
    (problem,) = caught.value.problems
    assert "A store cannot be at a URI" in problem.message
    assert problem.location is not None
    assert hint in (problem.hint or "")


@pytest.mark.parametrize("written", ["kept", "/abs/kept", "odd:name", "a/b:c/d", "c:/drive"])
def test_a_folder_is_no_uri(written: str) -> None:
    assert why_no_store(written) is None


def test_a_store_may_come_from_a_variable_and_is_refused_then_too(load: Load) -> None:
    with pytest.raises(WorkloadError, match="problem"):
        load(HEAD + "store: ${KEPT}/x\n", {"KEPT": "s3://b"})

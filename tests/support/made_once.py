"""Folders with tables and stores that one process writes once, and gives to each test as written.

A stored sketch belongs to the paths of its tables, so tests that share a folder get it under the
same path, one after the other. A test may change anything in it. Nothing may depend on how long ago
the folder was written.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.run_cli import Cli


class MadeOnce:
    """Folders by name, with a copy of each that no test sees."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: set[str] = set()

    def folder(self, name: str, make: Callable[[Path], object]) -> Path:
        """The folder with what `make` writes into it; `name` stands for its result."""
        folder, saved = self._root / name / "work", self._root / name / "saved"
        shutil.rmtree(folder, ignore_errors=True)
        if name in self._made:
            shutil.copytree(saved, folder, symlinks=True)
        else:
            shutil.rmtree(saved, ignore_errors=True)
            folder.mkdir(parents=True)
            make(folder)
            shutil.copytree(folder, saved, symlinks=True)
            self._made.add(name)
        return folder


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    return MadeOnce(tmp_path_factory.mktemp("made_once"))


CliOnce = Callable[..., Cli]


@pytest.fixture
def cli_once(capsys: pytest.CaptureFixture[str], made_once: MadeOnce) -> CliOnce:
    """The command line over the workload of a folder that `write` writes once.

    Then `and_then` is called once with it, such as `Cli.captured`.
    """

    def made(
        name: str,
        write: Callable[[Path], object],
        and_then: Callable[[Cli], object] = lambda cli: None,
    ) -> Cli:
        def both(folder: Path) -> None:
            write(folder)
            and_then(Cli(capsys, folder / "w.yaml"))

        return Cli(capsys, made_once.folder(name, both) / "w.yaml")

    return made

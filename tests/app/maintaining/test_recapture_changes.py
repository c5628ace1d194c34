"""A recapture reads tables, not changes: it says no number of changes anywhere, rather than 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from tests.support.run_cli import Cli


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    assert run(build_app(), ["init", "--demo"]) == 0
    cli = Cli(capsys, tmp_path / "impctl-demo" / "demo.yaml")
    cli.good("capture")
    cli.good("apply", "s8")
    return cli


def test_a_recapture_has_no_number_of_changes(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "m.prom"
    foreseen = cli.good("maintain", "--policy", "full", "--dry-run").results
    done = cli.good("maintain", "--policy", "full", "--metrics", str(file)).results
    for result in (*foreseen, *done):
        assert (result["action"], result["changes"]) == ("recapture", None)
    samples = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert any(line.startswith("impctl_maintain_recaptured{") for line in samples)
    assert not any(line.startswith("impctl_maintain_changes{") for line in samples)
    (first, *_) = cli.good("status", "--runs", "1").results
    assert [run["changes"] for run in first["runs"]] == [None]


def test_what_was_carried_on_has_one(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "m.prom"
    done = cli.good("maintain", "--policy", "strict", "--metrics", str(file)).results
    assert [result["changes"] for result in done] == [1, 1]
    assert 'impctl_maintain_changes{query="q_top"} 1.0' in file.read_text()
    (first, *_) = cli.good("status", "--runs", "2").results
    assert [(run["action"], run["changes"]) for run in first["runs"]] == [
        ("exact", 1),
        ("capture", None),
    ]

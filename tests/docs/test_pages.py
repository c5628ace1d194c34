"""Examples on the pages about running impctl, and the size of the glossary."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from tests.support.run_cli import Cli
from tests.support.running_example import write_running_example
from tests.support.sources import ROOT

BLOCK = re.compile(r"^```\w*\n(?:.*\n)*?```|^(?: {4}.*\n|\n(?= {4}))+", re.MULTILINE)
COMMAND = re.compile(r"^[ $]*impctl ((?:'[^']*'|\"[^\"]*\"|[^|#>&;\n])+)", re.MULTILINE)
CODE = re.compile(r"`impctl ([a-z]+(?: [^`]+)?)`")
SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")


def read(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def commands(text: str) -> list[str]:
    """The calls of impctl in blocks of code, without what a shell adds."""
    return [call for block in BLOCK.findall(text) for call in COMMAND.findall(block)]


@pytest.mark.parametrize(
    ("page", "least"),
    [("scheduling.md", 8), ("operations.md", 4), ("troubleshooting.md", 1), ("json.md", 3)],
)
def test_every_command_in_an_example_parses(page: str, least: int) -> None:
    app: Any = typer.main.get_command(build_app())
    calls = commands(read(page))
    assert len(calls) >= least
    for call in calls:
        name, *words = shlex.split(call)
        app.commands[name].make_context(name, words)


@pytest.mark.parametrize(
    "page", ["scheduling.md", "operations.md", "troubleshooting.md", "json.md", "README.md"]
)
def test_every_option_in_the_text_exists(page: str) -> None:
    app: Any = typer.main.get_command(build_app())
    text = (ROOT / page if page == "README.md" else ROOT / "docs" / page).read_text("utf-8")
    for name, *words in map(shlex.split, CODE.findall(text)):
        known = {one for param in app.commands[name].params for one in param.opts}
        assert {word for word in words if word.startswith("--")} <= known, (name, words)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The demo that the pages use, from `impctl init --demo`."""
    monkeypatch.chdir(tmp_path)
    assert run(build_app(), ["init", "--demo"]) == 0
    return Cli(capsys, Path("impctl-demo/demo.yaml"))


def test_the_failure_on_the_page_of_troubleshooting(cli: Cli) -> None:
    page = read("troubleshooting.md")
    (call,) = commands(page)
    name, workload, *words = shlex.split(call)
    assert workload == str(cli.workload)
    ran = cli(name, *words)
    code = re.search(r"^    error: .* \[(\w+)\]$", page, re.MULTILINE)
    exit_code = re.search(r"^    \$ echo \$\?\n    (\d+)$", page, re.MULTILINE)
    assert code is not None
    assert exit_code is not None
    assert ran.refusal == (int(exit_code[1]), code[1])
    assert f"hint: {ran.error['hint']}\n" in page


def test_the_document_on_the_page_of_json(cli: Cli) -> None:
    page = read("json.md")
    name, _, *words = shlex.split(commands(page)[0])
    ran = cli(name, *(word for word in words if word != "--json"))
    (block,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    shown = json.loads(block)
    assert list(shown) == list(ran.document)
    assert list(shown["error"]) == list(ran.error)
    del shown["error"]["message"], ran.document["error"]["message"]
    assert shown == ran.document


def test_the_example_of_the_glossary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli = Cli(capsys, write_running_example(tmp_path))
    (sketch,) = cli("capture", "--query", "q_top").results[0]["sketches"]
    ranges = ", ".join(map(str, sketch["fragments"]))
    name = f"{sketch['table']}.{sketch['attribute']}"
    assert f"{name} {len(sketch['fragments'])} of {sketch['total']} {{{ranges}}}`" in read(
        "glossary.md"
    )


def test_the_glossary_is_short() -> None:
    """Only terms of impctl, each in one or two sentences, in order within each table."""
    tables = [
        re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", part, re.MULTILINE)[1:]
        for part in read("glossary.md").split("\n## ")[1:]
    ]
    entries = [entry for table in tables for entry in table]
    assert 0 < len(entries) <= 60
    assert [term for term, text in entries if len(SENTENCES.split(text)) > 2] == []
    for table in tables:
        assert [term for term, _ in table] == sorted(term for term, _ in table)

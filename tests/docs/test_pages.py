"""Examples in user documents: their commands run in order and print what the page shows."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
import typer
import yaml
from deltalake import write_deltalake

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.measure.files import generate
from impctl.service import init
from impctl.service.context import SilentReporter
from impctl.service.settings import ENVVARS, Example, GenerateRequest
from impctl.tables.write.maintenance import create_table
from impctl.workload.load import workload_of
from tests.docs.consoles import PAGES, TUTORIAL, Page
from tests.docs.consoles import run as run_page
from tests.support.run_cli import Cli, MadeOnce, made_once, write_running_example
from tests.support.sources import ROOT

__all__ = ["made_once"]

WITH_YAML = (
    "first-steps.md",
    "materialized-results.md",
    "output-formats.md",
    "changes.md",
    "why.md",
    "state-on-disk.md",
    "configuration.md",
)
WITH_COMMANDS = ("scheduling.md", "operations.md", "troubleshooting.md", "json.md")
YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BASE = """
version: 1
tables: {sales: {path: sales}}
queries: {q: {sql: SELECT COUNT(*) AS n FROM sales}}
"""


@pytest.mark.parametrize("page", WITH_YAML)
def test_yaml_of_the_page_is_valid(page: str) -> None:
    for text in YAML_BLOCK.findall(read(page)):
        added = yaml.safe_load(text)
        document = {**yaml.safe_load(BASE), **added}
        for key in ("tables", "queries"):
            document[key] = {**yaml.safe_load(BASE)[key], **added.get(key, {})}
        # If the page shows a complete file, read it unchanged, so that positions are right.
        source = text if "version" in added else yaml.safe_dump(document)
        workload_of(Path("page.yaml"), source, {"KEY": "k", "SECRET": "s"})


BLOCK = re.compile(r"^```\w*\n(?:.*\n)*?```|^(?: {4}.*\n|\n(?= {4}))+", re.MULTILINE)
COMMAND = re.compile(r"^[ $]*impctl ((?:'[^']*'|\"[^\"]*\"|[^|#>&;\n])+)", re.MULTILINE)
CALL = re.compile(r"/srv/impctl/bin/impctl ([^\n\"&>]+)")
CODE = re.compile(r"`impctl ([a-z]+(?: [^`]+)?)`")
SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")


def read(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def commands(text: str) -> list[str]:
    """The calls of impctl in code blocks, without shell syntax."""
    shown = [call for block in BLOCK.findall(text) for call in COMMAND.findall(block)]
    return shown + CALL.findall(text)


@pytest.mark.parametrize("page", [*WITH_COMMANDS, *WITH_YAML])
def test_every_command_in_an_example_parses(page: str) -> None:
    app: Any = typer.main.get_command(build_app())
    calls = commands(read(page))
    assert len(calls) >= {"scheduling.md": 8, "operations.md": 11, "json.md": 3}.get(page, 1)
    for call in calls:
        name, *words = shlex.split(call, comments=True)
        app.commands[name].make_context(name, words)


@pytest.mark.parametrize("page", [*WITH_COMMANDS, "../README.md"])
def test_every_option_in_the_text_exists(page: str) -> None:
    app: Any = typer.main.get_command(build_app())
    for name, *words in map(shlex.split, CODE.findall(read(page))):
        known = {option for param in app.commands[name].params for option in param.opts}
        assert {word for word in words if word.startswith("--")} <= known, (name, words)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The demo that the pages use, from `impctl init --demo`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(init, "DEMO_ROWS", 2_000)
    assert run(build_app(), ["init", "--demo"]) == 0
    return Cli(capsys, Path("impctl-demo/demo.yaml"))


def test_the_failures_on_troubleshooting_and_json(cli: Cli) -> None:
    page = read("troubleshooting.md")
    (call,) = commands(page)
    name, workload, *words = shlex.split(call)
    assert workload == str(cli.workload)
    result = cli(name, *words)
    code = re.search(r"^    error: .* \[(\w+)\]$", page, re.MULTILINE)
    exit_code = re.search(r"^    \$ echo \$\?\n    (\d+)$", page, re.MULTILINE)
    assert code is not None
    assert exit_code is not None
    assert result.refusal == (int(exit_code[1]), code[1])
    assert f"hint: {result.error['hint']}\n" in page
    page = read("json.md")
    name, _, *words = shlex.split(commands(page)[0])
    result = cli(name, *(word for word in words if word != "--json"))
    (block,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    shown = json.loads(block)
    assert list(shown) == list(result.document)
    assert list(shown["error"]) == list(result.error)
    del shown["error"]["message"], result.document["error"]["message"]
    assert shown == result.document


def test_the_example_of_the_glossary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli = Cli(capsys, write_running_example(tmp_path))
    (sketch,) = cli("capture", "--query", "q_top").results[0]["sketches"]
    ranges = ", ".join(map(str, sketch["ranges"]))
    name = f"{sketch['table']}.{sketch['attribute']}"
    assert f"{name} {len(sketch['ranges'])} of {sketch['total']} {{{ranges}}}`" in read(
        "glossary.md"
    )


def test_the_glossary_is_short() -> None:
    """The glossary has only terms of impctl, in order, each in one or two sentences."""
    tables = [
        re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", part, re.MULTILINE)[1:]
        for part in read("glossary.md").split("\n## ")[1:]
    ]
    entries = [entry for table in tables for entry in table]
    assert 0 < len(entries) <= 60
    assert [term for term, text in entries if len(SENTENCES.split(text)) > 2] == []
    for table in tables:
        assert [term for term, _ in table] == sorted(term for term, _ in table)


PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.spark
def test_the_blocks_of_the_page_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry in ENVVARS:
        monkeypatch.delenv(entry.name, raising=False)
    (tmp_path / "workloads").mkdir()
    shutil.copy(ROOT / "workloads" / "running-example.yaml", tmp_path / "workloads")
    generate(GenerateRequest(tmp_path / "demo", Example.RUNNING), SilentReporter())
    monkeypatch.chdir(tmp_path)
    page = read("python.md")
    blocks = PYTHON_BLOCK.findall(page)
    assert len(blocks) == page.count("```python") >= 6
    names: dict[str, Any] = {}
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        for block in blocks:
            exec(compile(block, "docs/python.md", "exec"), names)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def check_page(page: Page, folder: Path) -> None:
    commands = run_page(page, folder)
    assert len(commands) >= 3
    for shown in commands:
        assert shown.is_true, (shown.command, shown.exit_code, shown.printed)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(
    not os.environ.get("IMPCTL_CRIMES", ""),
    reason="IMPCTL_CRIMES names no Parquet file of incidents",
)
def test_every_command_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    check_page(TUTORIAL, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_prints_what_the_page_shows(page: Page, tmp_path: Path) -> None:
    check_page(page, tmp_path)


PAGE = read("operations.md")
OPERATIONS_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)

WORKLOAD = """
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2, 4]}}}
queries:
  q: {sql: "SELECT g, COUNT(*) n FROM t GROUP BY g HAVING COUNT(*) > 1", sketch: {t: g}}
"""


def operations_blocks(kind: str) -> list[str]:
    result = [text for name, text in OPERATIONS_BLOCK.findall(PAGE) if name == kind]
    assert result, kind
    return result


def rows(*groups: int) -> pa.Table:
    return pa.table({"g": pa.array(groups, pa.int64())})


class Site:
    """The folder that the page calls /srv, below a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> None:
        folder = self.folder
        (folder / "sales").mkdir()
        (folder / "impctl" / "bin").mkdir(parents=True)
        script = folder / "impctl" / "bin" / "impctl"
        script.write_text(
            f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} "
            f'exec {sys.executable} -P -m impctl "$@"\n'
        )
        script.chmod(0o755)
        create_table(str(folder / "sales" / "t"), rows(0, 0, 3))
        (folder / "sales" / "sales.yaml").write_text(WORKLOAD)
        self.shell(operations_blocks("sh")[0])

    def localized(self, text: str) -> str:
        return text.replace("/srv/", f"{self.folder}/")

    def shell(self, text: str, shell: str = "sh", **variables: str) -> str:
        """Run with a nearly empty environment, like cron."""
        completed = subprocess.run(
            [f"/bin/{shell}", "-e", "-c", self.localized(text)],
            env={"HOME": str(self.folder), "PATH": "/usr/bin:/bin", **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (completed.returncode, completed.stderr) == (0, ""), completed.stderr
        return completed.stdout

    def change(self) -> None:
        write_deltalake(str(self.folder / "sales" / "t"), rows(3), mode="append")


@pytest.fixture
def site(made_once: MadeOnce) -> Site:
    return Site(made_once.folder("site", lambda folder: Site(folder).create()))


def action(text: str) -> str:
    return str(json.loads(text)["results"][0]["action"])


def test_every_option_of_operations_exists() -> None:
    app: Any = typer.main.get_command(build_app())
    known = {name for command in app.commands.values() for p in command.params for name in p.opts}
    assert {*re.findall(r"`(--[a-z-]+)", PAGE)} <= known


@pytest.mark.slow
def test_the_cron_lines(site: Site) -> None:
    lines, due, clean = operations_blocks("cron")
    maintain = lines.splitlines()[0]
    site.change()
    site.shell(maintain.split(maxsplit=5)[5])
    site.shell(clean.split(maxsplit=5)[5])
    assert json.loads((site.folder / "sales" / "gc.ndjson").read_text())["ok"]
    log = site.folder / "sales" / "maintain.ndjson"
    assert action(log.read_text()) == "exact"
    site.change()
    site.shell(due.split(maxsplit=5)[5])
    assert [action(line) for line in log.read_text().splitlines()] == ["exact", "exact"]
    site.shell(due.split(maxsplit=5)[5])
    assert action(log.read_text().splitlines()[2]) == "none"


def unit_files(site: Site) -> list[Path]:
    """The unit files of the page, with the paths and the user of this machine."""
    result = []
    for text in operations_blocks("ini"):
        name = Path(text.splitlines()[0].removeprefix("# ")).name
        path = site.folder / name
        path.write_text(re.sub(r"^User=.*$", "User=root", site.localized(text), flags=re.MULTILINE))
        result.append(path)
    return result


@pytest.mark.slow
def test_the_systemd_units(site: Site) -> None:
    paths = unit_files(site)
    assert [path.name for path in paths] == [
        "impctl.service",
        "impctl-maintain.service",
        "impctl-maintain.timer",
    ]
    units = {}
    for path in paths:
        parser = configparser.ConfigParser(strict=True, interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(path)
        units[path.name] = parser
    service = units["impctl.service"]["Service"]
    assert service["RestartPreventExitStatus"] == "2"
    assert "--follow" in service["ExecStart"]
    verify = shutil.which("systemd-analyze")
    if verify is not None:
        completed = subprocess.run(
            [verify, "verify", *map(str, paths)], capture_output=True, text=True, check=False
        )
        lines = [line for line in completed.stderr.splitlines() if str(site.folder) in line]
        assert (completed.returncode, lines) == (0, []), completed.stderr
    site.change()
    once = units["impctl-maintain.service"]["Service"]
    assert action(site.shell(f"cd {once['WorkingDirectory']} && {once['ExecStart']}")) == "exact"
    site.change()
    line = site.shell(f"cd {service['WorkingDirectory']} && {service['ExecStart']} --max-runs 1")
    assert action(line) == "exact"


@pytest.mark.slow
def test_the_steps_of_the_workflow(site: Site) -> None:
    (text,) = operations_blocks("yaml")
    workflow = yaml.safe_load(text)
    job = workflow["jobs"]["maintain"]
    env = {name: site.localized(value) for name, value in job["env"].items()}
    summary = site.folder / "summary.md"
    site.change()
    for step in job["steps"]:
        site.shell(
            f"set -o pipefail\n{step['run']}", "bash", GITHUB_STEP_SUMMARY=str(summary), **env
        )
    assert action((site.folder / "maintain.json").read_text()) == "exact"
    assert summary.read_text().startswith("q: ")


@pytest.mark.slow
def test_the_airflow_task(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = operations_blocks("python")
    operators: list[dict[str, Any]] = []

    class Dag:
        def __init__(self, name: str, **arguments: Any) -> None:
            assert arguments["max_active_runs"] == 1
            assert arguments["schedule"] == timedelta(minutes=15)

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

    names = ["airflow", "providers", "standard", "operators", "bash"]
    modules = {name: ModuleType(name) for name in accumulate(names, "{}.{}".format)}
    vars(modules["airflow"])["DAG"] = Dag
    vars(modules[".".join(names)])["BashOperator"] = lambda **options: operators.append(options)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    exec(compile(text, "dag.py", "exec"), {})
    site.change()
    assert action(site.shell(operators[0]["bash_command"], "bash")) == "exact"


@pytest.mark.slow
def test_a_failed_cron_line_reports_it(site: Site) -> None:
    (site.folder / "sales" / "sales.yaml").unlink()
    line = operations_blocks("cron")[0].splitlines()[0].split(maxsplit=5)[5]
    assert site.shell(line) == "impctl ended with 2\n"
    document = json.loads((site.folder / "sales" / "maintain.ndjson").read_text())
    assert document["error"]["code"] == "workload_not_found"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
def test_the_weekly_verification(site: Site) -> None:
    line = operations_blocks("cron")[0].splitlines()[1].split(maxsplit=5)[5]
    path = os.path.dirname(shutil.which("java") or "")
    assert site.shell(line, PATH=f"{path}:/usr/bin:/bin") == ""
    (result,) = json.loads((site.folder / "sales" / "verify.ndjson").read_text())["results"]
    assert result["covers"]
    assert result["results_equal"]


@pytest.mark.slow
def test_a_restored_backup_continues(site: Site) -> None:
    site.change()
    site.shell(operations_blocks("sh")[1])
    maintain = "cd /srv/sales && /srv/impctl/bin/impctl maintain sales.yaml --json"
    first = json.loads(site.shell(maintain))["results"][0]
    assert first["action"] == "exact"
    store = site.folder / "sales" / ".impctl"
    shutil.rmtree(store)
    (backup,) = (site.folder / "sales").glob("backup-*")
    os.rename(backup, store)
    again = json.loads(site.shell(maintain))["results"][0]
    assert (again["action"], again["versions"]) == ("exact", first["versions"])
    assert again["since"] == first["since"]

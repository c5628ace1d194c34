"""The snippets of docs/operations.md are run as far as that goes without their surroundings."""

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
from impctl.tables.write.maintenance import create_table

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"/srv/impctl/bin/impctl ([^\n\"&>]+)")

WORKLOAD = """
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2, 4]}}}
queries:
  q: {sql: "SELECT g, COUNT(*) n FROM t GROUP BY g HAVING COUNT(*) > 1", sketch: {t: g}}
"""


def blocks(kind: str) -> list[str]:
    result = [text for name, text in BLOCK.findall(PAGE) if name == kind]
    assert result, kind
    return result


def rows(*groups: int) -> pa.Table:
    return pa.table({"g": pa.array(groups, pa.int64())})


class Site:
    """What the page calls /srv, below a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
        self.shell(blocks("sh")[0])

    def here(self, text: str) -> str:
        return text.replace("/srv/", f"{self.folder}/")

    def shell(self, text: str, shell: str = "sh", **variables: str) -> str:
        """Run as cron does: nearly no environment."""
        ran = subprocess.run(
            [f"/bin/{shell}", "-e", "-c", self.here(text)],
            env={"HOME": str(self.folder), "PATH": "/usr/bin:/bin", **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
        return ran.stdout

    def change(self) -> None:
        write_deltalake(str(self.folder / "sales" / "t"), rows(3), mode="append")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def action(text: str) -> str:
    return str(json.loads(text)["results"][0]["action"])


def test_every_command_of_the_page_parses() -> None:
    calls = CALL.findall(PAGE)
    assert len(calls) >= 7
    app: Any = typer.main.get_command(build_app())
    for call in calls:
        name, *words = shlex.split(call)
        app.commands[name].make_context(name, words)
    for option in re.findall(r"`(--[a-z-]+)", PAGE):
        known = {
            name for command in app.commands.values() for p in command.params for name in p.opts
        }
        assert option in known, option


@pytest.mark.slow
def test_the_cron_lines(site: Site) -> None:
    lines, due, clean = blocks("cron")
    maintain = lines.splitlines()[0]
    site.change()
    site.shell(maintain.split(maxsplit=5)[5])
    site.shell(clean.split(maxsplit=5)[5])
    assert json.loads((site.folder / "sales" / "gc.ndjson").read_text())["ok"]
    told = site.folder / "sales" / "maintain.ndjson"
    assert action(told.read_text()) == "exact"
    site.change()
    site.shell(due.split(maxsplit=5)[5])
    assert [action(line) for line in told.read_text().splitlines()] == ["exact", "exact"]
    site.shell(due.split(maxsplit=5)[5])
    assert action(told.read_text().splitlines()[2]) == "none"


def unit_files(site: Site) -> list[Path]:
    """The unit files of the page, with the paths of the site and its own user."""
    result = []
    for text in blocks("ini"):
        name = Path(text.splitlines()[0].removeprefix("# ")).name
        path = site.folder / name
        path.write_text(re.sub(r"^User=.*$", "User=root", site.here(text), flags=re.MULTILINE))
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
        ran = subprocess.run(
            [verify, "verify", *map(str, paths)], capture_output=True, text=True, check=False
        )
        mine = [line for line in ran.stderr.splitlines() if str(site.folder) in line]
        assert (ran.returncode, mine) == (0, []), ran.stderr
    site.change()
    once = units["impctl-maintain.service"]["Service"]
    assert action(site.shell(f"cd {once['WorkingDirectory']} && {once['ExecStart']}")) == "exact"
    site.change()
    line = site.shell(f"cd {service['WorkingDirectory']} && {service['ExecStart']} --max-runs 1")
    assert action(line) == "exact"


@pytest.mark.slow
def test_the_steps_of_the_workflow(site: Site) -> None:
    (text,) = blocks("yaml")
    workflow = yaml.safe_load(text)
    job = workflow["jobs"]["maintain"]
    env = {name: site.here(value) for name, value in job["env"].items()}
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
    (text,) = blocks("python")
    made: list[dict[str, Any]] = []

    class Dag:
        def __init__(self, name: str, **arguments: Any) -> None:
            assert arguments["max_active_runs"] == 1
            assert arguments["schedule"] == timedelta(minutes=15)

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

    names = ["airflow", "providers", "standard", "operators", "bash"]
    modules = {name: ModuleType(name) for name in accumulate(names, "{}.{}".format)}
    vars(modules["airflow"])["DAG"] = Dag
    vars(modules[".".join(names)])["BashOperator"] = lambda **given: made.append(given)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    exec(compile(text, "dag.py", "exec"), {})
    site.change()
    assert action(site.shell(made[0]["bash_command"], "bash")) == "exact"


@pytest.mark.slow
def test_a_cron_line_that_fails_says_so(site: Site) -> None:
    (site.folder / "sales" / "sales.yaml").unlink()
    line = blocks("cron")[0].splitlines()[0].split(maxsplit=5)[5]
    assert site.shell(line) == "impctl ended with 2\n"
    told = json.loads((site.folder / "sales" / "maintain.ndjson").read_text())
    assert told["error"]["code"] == "workload_not_found"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
def test_the_weekly_verification(site: Site) -> None:
    line = blocks("cron")[0].splitlines()[1].split(maxsplit=5)[5]
    path = os.path.dirname(shutil.which("java") or "")
    assert site.shell(line, PATH=f"{path}:/usr/bin:/bin") == ""
    (result,) = json.loads((site.folder / "sales" / "verify.ndjson").read_text())["results"]
    assert result["covers"]
    assert result["results_equal"]


@pytest.mark.slow
def test_the_backup_carries_on(site: Site) -> None:
    site.change()
    site.shell(blocks("sh")[1])
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

"""No option that names an output destroys a file of a table, a store or the workload."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli

WORKLOAD = """\
version: 1
tables: {t: {path: t}, u: {path: deep/u}}
partitions: {t: {g: {boundaries: [2]}}}
queries:
  q: {sql: "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 5", answer: true}
updates:
  - {name: more, insert: {table: t, file: batch.csv}}
"""
LINKS = {
    "to-data.csv": "t/data.parquet",
    "to-log.csv": "t/_delta_log/00000000000000000000.json",
    "to-next-entry.csv": "t/_delta_log/00000000000000000001.json",
    "to-table": "t",
    "to-log": "t/_delta_log",
    "to-store": ".impctl",
    "to-catalog.csv": ".impctl/catalog.sqlite",
    "to-workload.csv": "w.yaml",
    "to-batch.csv": "batch.csv",
    "to-link.csv": "to-data.csv",
}
TARGETS = [
    "t",
    "t/data.parquet",
    "t/new.{end}",
    "t/new/folder/new.{end}",
    "t/_delta_log",
    "t/_delta_log/00000000000000000000.json",
    "t/_delta_log/00000000000000000001.json",
    "t/_delta_log/_last_checkpoint",
    "t/_delta_log/new.{end}",
    "t/../t/new.{end}",
    "deep/u/new.{end}",
    "deep/u/_delta_log/new.{end}",
    "other/new.{end}",
    "other/_delta_log/00000000000000000000.json",
    ".impctl",
    ".impctl/catalog.sqlite",
    ".impctl/state/new.{end}",
    ".impctl/new.{end}",
    "elsewhere/catalog.sqlite",
    "elsewhere/new.{end}",
    "w.yaml",
    "batch.csv",
    *LINKS,
    "to-table/new.{end}",
    "to-log/00000000000000000001.json",
    "to-store/new.{end}",
]
MEANT = {
    "init": {"w.yaml", "to-workload.csv", "batch.csv", "to-batch.csv"},
    "store": {".impctl", "to-store", "elsewhere"},
}
"""Files that an option is meant to write, with `--force` or as stores."""
OPTIONS = {
    "query": ("csv", ["query", "{w}", "--query", "q", "--by", "engine", "--out", "{out}"]),
    "changes": ("jsonl", ["changes", "{w}", "--query", "q", "--all", "--out", "{out}"]),
    "files": ("json", ["rewrite", "{w}", "--query", "q", "--files", "{out}"]),
    "maintain": ("prom", ["maintain", "{w}", "--metrics", "{out}"]),
    "gain": ("prom", ["gain", "{w}", "--metrics", "{out}"]),
    "feed": ("feed", ["maintain", "{w}", "--changes", "{out}"]),
    "store": ("store", ["capture", "{w}", "--store", "{out}"]),
    "init": ("yaml", ["init", "{t}", "--out", "{out}", "--force"]),
    "demo": ("demo", ["init", "--demo", "{out}", "--force"]),
    "record": ("json", ["bench", "{w}", "--out", "{out}"]),
    "page": ("html", ["bench", "{w}", "--report", "{out}"]),
    "example": ("data", ["bench", "--generate", "{out}", "--rows", "10"]),
}


def made(folder: Path, capsys: Capsys) -> Cli:
    """Tables, a workload, stores, links, captured."""
    rows = pa.table({"g": [1, 2, 3], "x": [10, 20, 30]})
    for name in ("t", "deep/u", "other"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        create_table(str(folder / name), rows)
    (folder / "batch.csv").write_text("g,x\n1,1\n")
    cli = Cli.over(capsys, folder, WORKLOAD)
    cli.good("capture")
    shutil.copytree(folder / ".impctl", folder / "elsewhere")
    for name, goal in LINKS.items():
        (folder / name).symlink_to(goal)
    return cli


def content(folder: Path) -> dict[str, str]:
    """All files that are there, links not followed, with their content; but for what SQLite has
    beside a catalog."""
    result = {}
    for here, _, files in os.walk(folder):
        for name in files:
            path = Path(here) / name
            if path.is_symlink():
                result[str(path.relative_to(folder))] = os.readlink(path)
            elif not name.startswith(("catalog", "ledger", "lock")):
                result[str(path.relative_to(folder))] = hashlib.md5(path.read_bytes()).hexdigest()
    return result


@pytest.mark.parametrize("option", OPTIONS)
def test_nothing_is_destroyed(option: str, tmp_path: Path, capsys: Capsys) -> None:
    end, words = OPTIONS[option]
    cli = made(tmp_path, capsys)
    before = content(tmp_path)
    for target in TARGETS:
        if target in MEANT.get(option, ()):
            continue
        out = tmp_path / target.replace("{end}", end)
        places = {"{w}": str(cli.workload), "{out}": str(out), "{t}": str(tmp_path / "t")}
        code = run(build_app(), [places.get(word, word) for word in words])
        assert code in (2, 6), target
        assert content(tmp_path) == before, target
    assert "Traceback" not in capsys.readouterr().err

"""Rules that keep modules deep: interfaces, file sizes, names and loading. Limits are data.

Raising a limit needs a decision record. Part three of the redesign sets the final values: 30 names
for an interface, 150 modules, 60 entries of the glossary.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.arch.numbers import duplicate_classes, glossary_entries, lines_and_files
from tests.arch.test_layers import check, import_graph, module_of
from tests.arch.trace_batch import main
from tests.support.run_cli import Capsys
from tests.support.sources import PACKAGE, nodes, texts

FILES, MODULES_LOADED, GLOSSARY = 245, 175, 58
DECISIONS, LINES_OF_A_DECISION = 40, 60
SMALL, MERGED_BELOW = 80, 250
"""Files with fewer lines have to state their reason; a file with one importer and at most this many
lines is merged into it."""
INTERFACES: Mapping[str, int] = {
    "api": 2, "bench": 32, "cli": 1, "compile": 83, "costs": 11, "data": 78, "engine": 110,
    "errors": 43, "expr": 56, "forecast": 7, "measure": 8, "placement": 18, "plan": 86, "reuse": 3,
    "rules": 19, "safety": 45, "service": 153, "sketch": 24, "spark": 50, "sql": 24, "stopwatch": 1,
    "store": 42, "tables": 103, "types": 9, "unneeded": 2, "version": 3, "workload": 49,
}  # fmt: skip
"""How many names of a package others may import."""
ALONE = {
    "impctl.cli.boundary": "catches everything, and is loaded after signals are handled",
    "impctl.cli.output.measurements": "loads summaries of records, which few commands show",
}
"""Files with one importer that are not merged, and why."""


def imported_from_outside() -> dict[str, set[str]]:
    """The names that other packages import from each package."""
    names: dict[str, set[str]] = defaultdict(set)
    for file, node in nodes(ast.ImportFrom):
        parts = (node.module or "").split(".")
        own = module_of(file).split(".")
        if parts[0] == "impctl" and len(parts) > 1 and parts[1:2] != own[1:2]:
            names[parts[1]] |= {name.name for name in node.names}
    return names


def test_no_package_exports_more_than_its_limit() -> None:
    counts = {package: len(names) for package, names in imported_from_outside().items()}
    assert counts.keys() <= INTERFACES.keys()
    assert {p: n for p, n in counts.items() if n > INTERFACES[p]} == {}


def test_files_with_one_importer_are_merged() -> None:
    importers: dict[str, set[str]] = defaultdict(set)
    for module, imports in import_graph().items():
        for name in imports:
            importers[name].add(module)
    sizes = {module_of(path): text.count("\n") for path, text in texts().items()}
    alone = {
        module
        for module, users in importers.items()
        if len(users) == 1
        and {user.rpartition(".")[0] for user in users} == {module.rpartition(".")[0]}
        and sizes.get(module, MERGED_BELOW + 1) <= MERGED_BELOW
    }
    assert alone == ALONE.keys()


def test_a_small_file_states_its_reason() -> None:
    small = [
        path
        for path, text in texts().items()
        if text.count("\n") < SMALL and not path.stem.startswith("__")
    ]
    assert not [path for path in small if not _first_line(path)]


def _first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(texts()[path])) or "").partition("\n")[0]


def test_class_names_are_unique() -> None:
    assert duplicate_classes() == {}


def test_the_number_of_files() -> None:
    assert lines_and_files(PACKAGE)[1] <= FILES


@pytest.mark.slow
def test_maintaining_one_sum_loads_few_modules(capsys: Capsys) -> None:
    main(["--json"])
    reports = json.loads(capsys.readouterr().out)
    assert reports.keys() == {"memory", "fresh"}
    for report in reports.values():
        check(report)
    assert reports["memory"]["calls"] < reports["fresh"]["calls"]
    assert reports["fresh"]["modules"] + reports["fresh"]["packages"] <= MODULES_LOADED


def test_the_glossary_stays_short() -> None:
    assert glossary_entries() <= GLOSSARY


def test_decisions_are_few_and_short() -> None:
    records = list((PACKAGE.parent / "docs" / "decisions").glob("0*.md"))
    assert len(records) <= DECISIONS
    lengths = {record.name: len(record.read_text().splitlines()) for record in records}
    assert {name: n for name, n in lengths.items() if n > LINES_OF_A_DECISION} == {}

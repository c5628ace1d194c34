"""Import directions as the table in docs/architecture.md has them, and no cycles.

Every import counts: at the top, inside a function, and for types only.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support.sources import PACKAGE, ROOT, nodes, texts

ONLY = {
    "cli": {"service", "measure", "errors", "version", "values", "unneeded"},
    "api": {"service", "errors", "types", "values"},
}
NEVER = {"engine": {"plan"}}
CYCLES: set[frozenset[str]] = set()
"""Modules that import each other, as what they read is nested in itself."""


@dataclass(frozen=True)
class Layer:
    number: int
    """Imports go from larger numbers to smaller ones."""
    outside: frozenset[str]
    """Third-party packages that it imports."""


@dataclass(frozen=True)
class Import:
    file: Path
    line: int
    module: str


def read_layers(text: str) -> dict[str, Layer]:
    layers: dict[str, Layer] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or not cells[0].isdigit():
            continue
        outside = frozenset(re.findall(r"\w+", cells[3]))
        for name in re.findall(r"`(\w+)`", cells[1]):
            assert name not in layers, f"`{name}` stands twice in the table"
            layers[name] = Layer(int(cells[0]), outside)
    return layers


LAYERS = read_layers((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))


@cache
def imports_by_file() -> Mapping[Path, tuple[Import, ...]]:
    """Every import of every module: at the top, inside a function, and for types only."""
    result: dict[Path, list[Import]] = {file: [] for file in texts()}
    for file, node in nodes(ast.Import):
        result[file] += (Import(file, node.lineno, name.name) for name in node.names)
    for file, node in nodes(ast.ImportFrom):
        package = file.relative_to(ROOT).parts[:-1]
        base = [] if node.level == 0 else list(package[: len(package) - node.level + 1])
        base += [node.module] if node.module else []
        result[file] += (
            Import(file, node.lineno, ".".join([*base, name.name])) for name in node.names
        )
    return {file: tuple(imports) for file, imports in result.items()}


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def all_imports() -> Iterator[tuple[str, Import]]:
    """Each import with the package that has it."""
    for file, imports in imports_by_file().items():
        if file.parent == PACKAGE and file.stem.startswith("__"):
            continue
        for entry in imports:
            yield module_of(file).split(".")[1], entry


@cache
def import_graph() -> Mapping[str, frozenset[str]]:
    """The modules that each module imports."""
    modules = {module_of(file) for file in texts()}
    graph = {}
    for file, imports in imports_by_file().items():
        named = {name for i in imports for name in (i.module, i.module.rpartition(".")[0])}
        graph[module_of(file)] = frozenset(named & modules - {module_of(file)})
    return graph


def cycles(graph: Mapping[str, AbstractSet[str]]) -> set[frozenset[str]]:
    """The strongly connected components: files from each of which each other one is reached."""
    reached = {start: set(targets) for start, targets in graph.items()}
    for between in graph:
        for result in reached.values():
            if between in result:
                result |= reached[between]
    return {
        frozenset({one, *(other for other in reached[one] if one in reached[other])})
        for one in graph
    }


def complaint(package: str, entry: Import) -> str | None:
    """What is wrong with an import of a package, if anything."""
    parts = entry.module.split(".")
    if parts[0] != "impctl":
        if parts[0] in sys.stdlib_module_names or parts[0] in LAYERS[package].outside:
            return None
        return f"`{package}` may not import the package `{parts[0]}`"
    if len(parts) == 1 or parts[1] == package:
        return None
    target = parts[1]
    if target not in LAYERS:
        return f"`{entry.module}` is in no package of the table"
    if target in NEVER.get(package, ()):
        return f"`{package}` never sees `{target}`"
    if package in ONLY and target not in ONLY[package]:
        return f"`{package}` may import {sorted(ONLY[package])} only, not `{target}`"
    mine, its = LAYERS[package].number, LAYERS[target].number
    return None if its < mine else f"`{package}` ({mine}) imports `{target}` ({its})"


def test_the_table_is_read() -> None:
    assert LAYERS["errors"] == Layer(2, frozenset())
    assert LAYERS["cli"] == Layer(15, frozenset({"typer", "rich"}))
    assert "pyspark" in LAYERS["spark"].outside


def test_the_table_has_every_package_and_module_of_the_top() -> None:
    top = {
        path.stem
        for path in PACKAGE.iterdir()
        if (path.suffix == ".py" and not path.stem.startswith("__"))
        or (path.is_dir() and any(path.glob("*.py")))
    }
    assert top == set(LAYERS)


def test_imports_go_to_smaller_numbers_and_listed_packages_only() -> None:
    complaints = []
    for package, entry in all_imports():
        if (text := complaint(package, entry)) is not None:
            complaints.append(f"{entry.file.relative_to(ROOT)}:{entry.line}: {text}")
    assert not complaints, "\n" + "\n".join(complaints)


def test_no_package_lists_another_that_it_does_not_import() -> None:
    used: dict[str, set[str]] = {}
    for package, entry in all_imports():
        used.setdefault(package, set()).add(entry.module.split(".")[0])
    spare = {name: layer.outside - used.get(name, set()) for name, layer in LAYERS.items()}
    assert not {name: packages for name, packages in spare.items() if packages}


def test_files_import_each_other_only_where_that_is_known() -> None:
    assert {cycle for cycle in cycles(import_graph()) if len(cycle) > 1} == CYCLES


def test_a_cycle_is_found_across_a_file_between() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert sorted(map(sorted, cycles(graph))) == [["a", "b", "c"], ["d"], ["e"]]


def test_the_init_of_a_package_imports_nothing() -> None:
    result = [
        f"{file.relative_to(ROOT)}"
        for file, imports in imports_by_file().items()
        if file.stem == "__init__" and file.parent != PACKAGE and imports
    ]
    assert not result


@pytest.mark.parametrize(
    ("package", "module", "allowed"),
    [
        ("cli", "impctl.service.results", True),
        ("cli", "impctl.errors.UsageError", True),
        ("cli", "impctl.workload.models", False),
        ("cli", "pyarrow", False),
        ("api", "impctl.service.results", True),
        ("api", "impctl.spark.session", False),
        ("api", "impctl.cli.output.text", False),
        ("service", "impctl.measure.run", False),
        ("service", "impctl.store.records", True),
        ("engine", "impctl.plan.nodes", False),
        ("engine", "impctl.sql.statement", False),
        ("engine", "impctl.store.catalog", False),
        ("tables", "impctl.store.records", False),
        ("sketch", "impctl.engine.trace", False),
        ("sql", "sqlglot.exp", True),
        ("plan", "numpy", False),
        ("plan", "sqlglot", False),
        ("plan", "impctl.sql.statement", False),
        ("data", "json", True),
    ],
)
def test_the_rule_itself(package: str, module: str, allowed: bool) -> None:
    assert (complaint(package, Import(PACKAGE, 1, module)) is None) is allowed


WRITERS = {
    "impctl.service.capture",
    "impctl.service.budget.choice",
    "impctl.service.maintain",
    "impctl.service.step",
    "impctl.service.rebalance",
    "impctl.service.context",
}
"""The modules of `service` that get a store they can write to; all others read (`StoreReader`)."""


def test_who_can_write_to_the_store() -> None:
    importing = {
        module
        for module, named in import_graph().items()
        if module.startswith("impctl.service.") and "impctl.store.store" in named
    }
    assert importing == WRITERS


def reached_from(module: str, through: str = "impctl") -> set[str]:
    """What a module loads, by itself or by way of others of the package `through`."""
    graph = import_graph()
    reached = mine = {module}
    while mine:
        result = {name for one in mine for name in graph[one]} - reached
        reached = reached | result
        mine = {name for name in result if name.startswith(through)}
    return reached


def test_deciding_and_telling_load_nothing_that_writes() -> None:
    writing = {"impctl.service.maintain", "impctl.service.step"}
    for module in ("impctl.service.decide", "impctl.service.maintenance_plan"):
        assert not reached_from(module, "impctl.service.") & writing, module


def test_who_is_given_pinned_tables_reaches_neither_store_nor_spark() -> None:
    reached = reached_from("impctl.service.pinned")
    packages = {name.split(".")[1] for name in reached if name.startswith("impctl.")}
    assert not packages & {"store", "spark"}
    assert "tables" in packages

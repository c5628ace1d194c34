"""Import directions match the table in docs/architecture.md; which imports files may have."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.arch.trace_batch import as_text, trace_in_memory
from tests.support.sources import PACKAGE, ROOT, nodes, texts

ONLY = {
    "cli": {"service", "measure", "errors", "version", "unneeded"},
    "api": {"service", "errors", "types"},
}
NEVER = {"engine": {"plan"}}
EVERYWHERE = {"msgspec"}
"""Third-party packages that every package may import: values are its structs."""
CYCLES: set[frozenset[str]] = set()
"""Modules that import each other because their structures are recursive."""


class Layer(Struct, frozen=True):
    number: int
    """Imports go from larger numbers to smaller ones."""
    outside: frozenset[str]
    """Third-party packages that it imports."""


class Import(Struct, frozen=True):
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
    """Each import with the package it is in."""
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
    """The strongly connected components, in which each module reaches every other one."""
    reached = {start: set(targets) for start, targets in graph.items()}
    for middle in graph:
        for result in reached.values():
            if middle in result:
                result |= reached[middle]
    return {
        frozenset({module, *(target for target in reached[module] if module in reached[target])})
        for module in graph
    }


def complaint(package: str, entry: Import) -> str | None:
    """Describe what is wrong with an import of a package, if anything."""
    parts = entry.module.split(".")
    if parts[0] != "impctl":
        known = {*sys.stdlib_module_names, *EVERYWHERE, *LAYERS[package].outside}
        if parts[0] in known:
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
    upper, lower = LAYERS[package].number, LAYERS[target].number
    return None if lower < upper else f"`{package}` ({upper}) imports `{target}` ({lower})"


def test_the_table_is_parsed() -> None:
    assert LAYERS["errors"] == Layer(2, frozenset())
    assert LAYERS["cli"] == Layer(15, frozenset({"typer", "rich"}))
    assert "pyspark" in LAYERS["spark"].outside


def test_the_table_has_every_top_level_package() -> None:
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


def test_listed_packages_are_imported() -> None:
    used: dict[str, set[str]] = {}
    for package, entry in all_imports():
        used.setdefault(package, set()).add(entry.module.split(".")[0])
    unused = {name: layer.outside - used.get(name, set()) for name, layer in LAYERS.items()}
    assert not {name: packages for name, packages in unused.items() if packages}


def test_only_known_cycles_exist() -> None:
    assert {cycle for cycle in cycles(import_graph()) if len(cycle) > 1} == CYCLES


def test_indirect_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert sorted(map(sorted, cycles(graph))) == [["a", "b", "c"], ["d"], ["e"]]


def test_init_files_import_nothing() -> None:
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
def test_import_rules(package: str, module: str, allowed: bool) -> None:
    assert (complaint(package, Import(PACKAGE, 1, module)) is None) is allowed


WRITERS = {
    "impctl.service.capture",
    "impctl.service.budget.choice",
    "impctl.service.maintain",
    "impctl.service.step",
    "impctl.service.rebalance",
    "impctl.service.context",
}
"""The modules of `service` that get a writable store; all others read (`StoreReader`)."""


def test_modules_that_write_to_the_store() -> None:
    importing = {
        module
        for module, imports in import_graph().items()
        if module.startswith("impctl.service.") and "impctl.store.store" in imports
    }
    assert importing == WRITERS


def reached_from(module: str, through: str = "impctl") -> set[str]:
    """The modules that a module loads directly, or through others of the package `through`."""
    graph = import_graph()
    reached = pending = {module}
    while pending:
        result = {name for current in pending for name in graph[current]} - reached
        reached = reached | result
        pending = {name for name in result if name.startswith(through)}
    return reached


def test_read_only_modules_load_no_writers() -> None:
    writing = {"impctl.service.maintain", "impctl.service.step"}
    for module in ("impctl.service.decide", "impctl.service.maintenance_plan"):
        assert not reached_from(module, "impctl.service.") & writing, module


def test_pinned_tables_need_neither_store_nor_spark() -> None:
    reached = reached_from("impctl.service.pinned")
    packages = {name.split(".")[1] for name in reached if name.startswith("impctl.")}
    assert not packages & {"store", "spark"}
    assert "tables" in packages


_REFERENCE = re.compile(r"`((?:\w+\.)+(?!py`|yaml`)\w+)`")


def test_no_package_or_module_is_a_catch_all() -> None:
    banned = {"utils", "util", "helpers", "helper", "common", "core", "misc"}
    assert not [path for path in texts() if banned & {path.stem, *path.relative_to(ROOT).parts}]


def test_every_module_named_in_text_exists() -> None:
    """Checks `package.module` and `package.module.Name` in docstrings, comments and pages."""
    tops = {path.stem for path in PACKAGE.iterdir() if not path.stem.startswith("_")}
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages += (ROOT / "docs").glob("*.md")
    result = []
    for page, text in {
        **{page: page.read_text(encoding="utf-8") for page in pages},
        **texts(),
    }.items():
        for reference in _REFERENCE.findall(text):
            parts = reference.removeprefix("impctl.").split(".")
            target = PACKAGE.joinpath(*parts[:2])
            is_setting = parts[0] == "spark" and not target.with_suffix(".py").exists()
            is_field = reference == "reuse.candidates"
            if parts[0] in tops and not (is_setting or is_field or _exists(parts)):
                result.append(f"{page.relative_to(ROOT)}: `{reference}`")
    assert not result, "\n" + "\n".join(sorted(set(result)))


def _exists(parts: list[str]) -> bool:
    """Whether the package has this module, or this name in a module."""
    for length in range(len(parts), 0, -1):
        path = PACKAGE.joinpath(*parts[:length])
        file = path.with_suffix(".py")
        if file.exists() or path.is_dir():
            rest = parts[length:]
            if not rest:
                return True
            source = file if file.exists() else path / "__init__.py"
            return re.search(rf"\b{rest[0]}\b", source.read_text(encoding="utf-8")) is not None
    return False


ENGINE = PACKAGE / "engine"
_PACKAGE = "impctl.engine"


@cache
def operators() -> frozenset[str]:
    """The classes of `engine` that are operators."""
    return frozenset(
        node.name
        for file, node in nodes(ast.ClassDef)
        if ENGINE in file.parents
        and any(isinstance(base, ast.Name) and base.id == "Operator" for base in node.bases)
    )


def inspections(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield where and how the nodes of a module inspect the type of an operator."""
    names = _names(nodes)
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
                if any(ast.unparse(part) in names for part in ast.walk(kinds) if _is_name(part)):
                    yield node.lineno, ast.unparse(node)
            case ast.MatchClass(cls=kind) if ast.unparse(kind) in names:
                yield node.lineno, f"case {ast.unparse(kind)}"
            case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=[kind]):
                if ast.unparse(kind) in names:
                    yield node.lineno, ast.unparse(node)
            case ast.Subscript(value=ast.Attribute(value=owner, attr="operators" | "_operators")):
                if ast.unparse(owner) != "self":
                    yield node.lineno, ast.unparse(node)


def _names(nodes: Sequence[ast.AST]) -> set[str]:
    """The operators' names in this module, imported directly or with their module."""
    known = operators()
    result: set[str] = set()
    for node in nodes:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
            "impctl.engine"
        ):
            continue
        for name in node.names:
            called = name.asname or name.name
            if (node.module or "") == _PACKAGE:
                result |= {f"{called}.{one}" for one in known}
            elif name.name in known:
                result.add(called)
    return result


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute)


def test_the_operators_are_found() -> None:
    assert {"AggregateOperator", "JoinOperator", "Top", "Union", "Circuit"} <= operators()


def test_only_engine_inspects_operators() -> None:
    by_file: dict[Path, list[ast.AST]] = defaultdict(list)
    for kind in (ast.ImportFrom, ast.Call, ast.MatchClass, ast.Compare, ast.Subscript):
        for file, node in nodes(kind):
            by_file[file].append(node)
    result = [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file, inside in by_file.items()
        if ENGINE not in file.parents
        for line, text in inspections(inside)
    ]
    assert not result, "\n" + "\n".join(result)


@pytest.mark.parametrize(
    "text",
    [
        "from impctl.engine.join import JoinOperator as J\nisinstance(x, J)",
        "from impctl.engine.join import JoinOperator\nisinstance(x, int | JoinOperator)",
        "from impctl.engine.join import JoinOperator\nisinstance(x, (int, JoinOperator))",
        "from impctl.engine import join\nisinstance(x, join.JoinOperator)",
        "from impctl.engine.topk import Top\nmatch x:\n    case Top():\n        pass",
        "from impctl.engine.circuit import Circuit\ntype(x) is Circuit",
        "compiled.circuit.operators[3]",
        "circuit._operators[:first]",
    ],
)
def test_inspections_are_found(text: str) -> None:
    assert len(list(inspections([*ast.walk(ast.parse(text))]))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from impctl.plan.nodes import Join\nisinstance(x, Join)",
        "from impctl.engine.join import JoinOperator\nJoinOperator('j', left, right, [])",
        "class A:\n    def f(self):\n        return self.operators[0]",
    ],
)
def test_other_types_may_be_inspected(text: str) -> None:
    assert not list(inspections([*ast.walk(ast.parse(text))]))


def check(report: dict[str, Any]) -> None:
    assert report["files"] <= report["functions"] <= report["calls"]
    assert report["files"] <= report["switches"] <= report["calls"]
    assert 2 < report["frames"] < report["calls"]
    assert set(report["types"]) <= set(report["records"])
    assert report["types"]
    assert report["idle"] + report["files"] >= report["modules"]
    assert sum(report["calls_by_file"].values()) == report["calls"]
    assert len(report["calls_by_file"]) == report["files"]


def test_state_in_memory(tmp_path: Path) -> None:
    report = trace_in_memory(tmp_path)
    check(report)
    text = as_text({"memory": report}, with_files=True)
    assert f"{report['calls']:,}" in text
    assert report["types"][-1] in text
    assert not [file for file in report["calls_by_file"] if file not in text]

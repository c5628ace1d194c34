"""Rooms and import directions, as the table in docs/architecture.md has them, and no circles.

Every import counts: at the top, inside a function, and for types only.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "impctl"
ONLY = {"cli": {"app", "errors"}, "api": {"app", "errors", "aliases"}}
NEVER = {"engine": {"plan"}}
CIRCLES = {frozenset({"impctl.plan.sql.call", "impctl.plan.sql.expr"})}
"""Files that import each other, as what they read or build is nested in itself."""


@dataclass(frozen=True)
class Room:
    number: int
    outside: frozenset[str]


@dataclass(frozen=True)
class Import:
    file: Path
    line: int
    module: str


def read_rooms(text: str) -> dict[str, Room]:
    rooms: dict[str, Room] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or not cells[0].isdigit():
            continue
        number, names, _, outside = cells
        packages = set() if "all of the above" in outside else set(re.findall(r"\w+", outside))
        if "all of the above" in outside:
            packages = {package for room in rooms.values() for package in room.outside}
        for name in re.findall(r"`(\w+)`", names):
            rooms[name] = Room(int(number), frozenset(packages))
    return rooms


ROOMS = read_rooms((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))


def imports_of(file: Path, package: tuple[str, ...]) -> Iterator[Import]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(file, node.lineno, name.name)
        elif isinstance(node, ast.ImportFrom):
            base = [] if node.level == 0 else list(package[: len(package) - node.level + 1])
            base += [node.module] if node.module else []
            for name in node.names:
                yield Import(file, node.lineno, ".".join([*base, name.name]))


def all_imports() -> Iterator[tuple[str, Import]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        if len(parts) == 2 and parts[1].startswith("__"):
            continue
        for entry in imports_of(file, parts[:-1]):
            yield parts[1], entry


def import_graph() -> dict[str, set[str]]:
    """Per file, as a module, those it imports: at the top, late, and for types only."""
    modules = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts): file
        for file in sorted(PACKAGE.rglob("*.py"))
    }
    graph = {}
    for module, file in modules.items():
        named = {entry.module for entry in imports_of(file, tuple(module.split(".")[:-1]))}
        graph[module] = {name for one in named for name in (one, one.rpartition(".")[0])} & {
            *modules
        } - {module}
    return graph


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The strongly connected components: files from each of which each other one is reached."""
    reached = {start: set(targets) for start, targets in graph.items()}
    for between in graph:
        for found in reached.values():
            if between in found:
                found |= reached[between]
    return {
        frozenset({one, *(other for other in reached[one] if one in reached[other])})
        for one in graph
    }


def complaint(room: str, entry: Import) -> str | None:
    parts = entry.module.split(".")
    if parts[0] == "impctl":
        if len(parts) == 1 or parts[1] in (room, "__version__"):
            return None
        target = parts[1]
        if target not in ROOMS:
            return f"`{target}` is no room"
        if target in NEVER.get(room, ()):
            return f"`{room}` never sees `{target}`"
        if room in ONLY and target not in ONLY[room]:
            return f"`{room}` may import {sorted(ONLY[room])} only, not `{target}`"
        if ROOMS[target].number >= ROOMS[room].number:
            return f"`{room}` ({ROOMS[room].number}) imports `{target}` ({ROOMS[target].number})"
        return None
    if parts[0] in sys.stdlib_module_names or parts[0] in ROOMS[room].outside:
        return None
    return f"`{room}` may not import the package `{parts[0]}`"


def test_the_table_is_read() -> None:
    assert ROOMS["errors"].number == 0
    assert ROOMS["cli"] == Room(8, frozenset({"typer", "rich"}))
    assert "pyspark" in ROOMS["spark"].outside
    assert "pyarrow" in ROOMS["app"].outside


def test_every_folder_and_file_is_a_room_of_the_table() -> None:
    found = {
        path.stem
        for path in PACKAGE.iterdir()
        if (path.suffix == ".py" and not path.stem.startswith("__"))
        or (path.is_dir() and any(path.glob("*.py")))
    }
    assert found <= set(ROOMS)


def test_imports_go_to_smaller_numbers_and_listed_packages_only() -> None:
    found = []
    for room, entry in all_imports():
        if room in ROOMS and (text := complaint(room, entry)) is not None:
            found.append(f"{entry.file.relative_to(ROOT)}:{entry.line}: {text}")
    assert not found, "\n" + "\n".join(found)


def test_files_import_each_other_only_where_that_is_known() -> None:
    assert {circle for circle in circles(import_graph()) if len(circle) > 1} == CIRCLES


def test_a_circle_is_found_across_a_file_between() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert sorted(map(sorted, circles(graph))) == [["a", "b", "c"], ["d"], ["e"]]


def test_a_rooms_init_imports_nothing() -> None:
    found = [
        f"{file.relative_to(ROOT)}"
        for file in sorted(PACKAGE.glob("*/__init__.py"))
        if list(imports_of(file, ("impctl", file.parent.name)))
    ]
    assert not found


@pytest.mark.parametrize(
    ("room", "module", "allowed"),
    [
        ("cli", "impctl.app.results.results", True),
        ("cli", "impctl.errors.UsageError", True),
        ("cli", "impctl.workload.models", False),
        ("cli", "pyarrow", False),
        ("api", "impctl.app.results.results", True),
        ("api", "impctl.spark.session", False),
        ("api", "impctl.cli.output.protocol", False),
        ("engine", "impctl.plan.nodes", False),
        ("engine", "impctl.store.catalog", False),
        ("sketch", "impctl.engine.runs", False),
        ("plan", "sqlglot.exp", True),
        ("plan", "numpy", False),
        ("data", "json", True),
    ],
)
def test_the_rule_itself(room: str, module: str, allowed: bool) -> None:
    assert (complaint(room, Import(PACKAGE, 1, module)) is None) is allowed

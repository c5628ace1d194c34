"""Rooms and import directions, as the table in docs/architecture.md has them, and no circles.

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
    "cli": {"app", "errors", "version", "values", "plural", "unneeded"},
    "api": {"app", "errors", "aliases", "values"},
}
NEVER = {"engine": {"plan"}}
CIRCLES = {frozenset({"impctl.sql.expressions"})}
"""Files that import each other, as what they read is nested in itself."""


@dataclass(frozen=True)
class Room:
    floor: int
    """Rooms of another whole number are told apart by it alone."""
    step: int
    """The decimal: the order of rooms that share a folder of the top."""
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
        number = re.fullmatch(r"(\d)(?:\.(\d))?", cells[0])
        if len(cells) != 4 or number is None:
            continue
        packages = frozenset(re.findall(r"\w+", cells[3]))
        for name in re.findall(r"`([\w.]+)`", cells[1]):
            assert name not in rooms, f"`{name}` stands twice in the table"
            rooms[name] = Room(int(number[1]), int(number[2] or 0), packages)
    return rooms


ROOMS = read_rooms((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))


def room_of(module: str) -> str | None:
    """The room a module of the package lies in: the nearest folder above that the table has."""
    parts = module.split(".")[1:]
    places = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((place for place in places if place in ROOMS), None)


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
    for file, imports in imports_by_file().items():
        if file.parent == PACKAGE and file.stem.startswith("__"):
            continue
        room = room_of(module_of(file))
        assert room is not None, f"{file.relative_to(ROOT)} lies in no room of the table"
        for entry in imports:
            yield room, entry


@cache
def import_graph() -> Mapping[str, frozenset[str]]:
    """The modules that each module imports."""
    modules = {module_of(file) for file in texts()}
    graph = {}
    for file, imports in imports_by_file().items():
        named = {name for i in imports for name in (i.module, i.module.rpartition(".")[0])}
        graph[module_of(file)] = frozenset(named & modules - {module_of(file)})
    return graph


def circles(graph: Mapping[str, AbstractSet[str]]) -> set[frozenset[str]]:
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


def complaint(room: str, entry: Import) -> str | None:
    parts = entry.module.split(".")
    if parts[0] != "impctl":
        if parts[0] in sys.stdlib_module_names or parts[0] in ROOMS[room].outside:
            return None
        return f"`{room}` may not import the package `{parts[0]}`"
    if len(parts) == 1:
        return None
    target = room_of(entry.module)
    if target is None:
        return f"`{entry.module}` lies in no room"
    if target == room:
        return None
    top, below = room.split(".")[0], target.split(".")[0]
    if below in NEVER.get(top, ()):
        return f"`{room}` never sees `{target}`"
    if top in ONLY and below not in ONLY[top]:
        return f"`{room}` may import {sorted(ONLY[top])} only, not `{target}`"
    mine, its = ROOMS[room], ROOMS[target]
    is_ordered_within = top == below or mine.floor == its.floor == 0
    is_below = its.step < mine.step if is_ordered_within else its.floor < mine.floor
    return None if is_below else f"`{room}` {_number(mine)} imports `{target}` {_number(its)}"


def _number(room: Room) -> str:
    return f"({room.floor}.{room.step})"


def test_the_table_is_read() -> None:
    assert ROOMS["errors"] == Room(0, 1, frozenset())
    assert ROOMS["cli"] == Room(8, 0, frozenset({"typer", "rich"}))
    assert "pyspark" in ROOMS["spark"].outside
    assert (ROOMS["app.using"].floor, ROOMS["app.using"].step) == (7, 5)


def test_every_folder_and_file_is_a_room_of_the_table() -> None:
    result = {
        path.stem
        for path in PACKAGE.iterdir()
        if (path.suffix == ".py" and not path.stem.startswith("__"))
        or (path.is_dir() and any(path.glob("*.py")))
    }
    assert result <= set(ROOMS)


def test_every_room_of_the_table_is_there() -> None:
    places = {name: PACKAGE.joinpath(*name.split(".")) for name in ROOMS}
    there = {n for n, p in places.items() if p.is_dir() or p.with_suffix(".py").exists()}
    assert there == set(ROOMS)


def test_imports_go_to_smaller_numbers_and_listed_packages_only() -> None:
    result = []
    for room, entry in all_imports():
        if (text := complaint(room, entry)) is not None:
            result.append(f"{entry.file.relative_to(ROOT)}:{entry.line}: {text}")
    assert not result, "\n" + "\n".join(result)


def test_no_room_lists_a_package_that_it_does_not_import() -> None:
    used: dict[str, set[str]] = {}
    for room, entry in all_imports():
        used.setdefault(room, set()).add(entry.module.split(".")[0])
    spare = {name: room.outside - used.get(name, set()) for name, room in ROOMS.items()}
    assert not {name: packages for name, packages in spare.items() if packages}


def test_files_import_each_other_only_where_that_is_known() -> None:
    assert {circle for circle in circles(import_graph()) if len(circle) > 1} == CIRCLES


def test_a_circle_is_found_across_a_file_between() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert sorted(map(sorted, circles(graph))) == [["a", "b", "c"], ["d"], ["e"]]


def test_a_rooms_init_imports_nothing() -> None:
    result = [
        f"{file.relative_to(ROOT)}"
        for file, imports in imports_by_file().items()
        if file.stem == "__init__" and file.parent != PACKAGE and imports
    ]
    assert not result


@pytest.mark.parametrize(
    ("room", "module", "allowed"),
    [
        ("cli", "impctl.service.results", True),
        ("cli", "impctl.errors.UsageError", True),
        ("cli", "impctl.workload.models", False),
        ("cli", "pyarrow", False),
        ("api", "impctl.service.results", True),
        ("api", "impctl.spark.session", False),
        ("api", "impctl.cli.output.text", False),
        ("app", "impctl.service.resolve", True),
        ("app", "impctl.measure.run", False),
        ("app.using", "impctl.service.maintain.maintain", False),
        ("app.using", "impctl.service.maintain", True),
        ("app.examining", "impctl.service.maintain", False),
        ("app.results", "impctl.store.records", True),
        ("engine", "impctl.plan.nodes", False),
        ("engine", "impctl.sql.statement", False),
        ("engine", "impctl.store.catalog", False),
        ("tables", "impctl.tables.changes", False),
        ("tables.change", "impctl.tables.snapshot", True),
        ("tables.change", "impctl.tables.write.apply", False),
        ("tables.change", "impctl.store.records", False),
        ("sketch", "impctl.engine.trace", False),
        ("plan.sql", "sqlglot.exp", True),
        ("plan", "numpy", False),
        ("plan", "sqlglot", False),
        ("plan", "impctl.sql.statement", False),
        ("data", "json", True),
    ],
)
def test_the_rule_itself(room: str, module: str, allowed: bool) -> None:
    assert (complaint(room, Import(PACKAGE, 1, module)) is None) is allowed


WRITERS = {
    "impctl.service.capture",
    "impctl.service.budget.convert",
    "impctl.service.budget.choice",
    "impctl.service.maintain",
    "impctl.service.step",
    "impctl.service.rebalance",
    "impctl.service.context",
}
"""The files of `app` that are given a store they can write to; all others read (`store.reader`)."""


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
    for module in ("impctl.service.decide", "impctl.service.query_state"):
        assert not reached_from(module, "impctl.service.") & writing, module


def test_who_is_given_pinned_tables_reaches_neither_store_nor_spark() -> None:
    reached = reached_from("impctl.service.context")
    rooms = {name.split(".")[1] for name in reached if name.startswith("impctl.")}
    assert not rooms & {"store", "spark"}
    assert "tables" in rooms

"""One-line changes of the product, each with the verdict that the tests should reach.

A mutant names a function by file and qualified name, the text to replace and the new text. The old
text must occur exactly once in the source of that function, so a stale list fails.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from textwrap import dedent
from typing import Any

import yaml
from msgspec import Struct

LISTS = Path(__file__).parent
PRODUCT = "impctl"


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class StaleMutantError(Exception):
    """The function or its old text is missing or ambiguous, or the change is not valid Python."""


class Mutant(Struct, frozen=True):
    """`name` is unique in all lists; `survives` says why no test can notice a harmless change."""

    name: str
    file: str
    function: str
    old: str
    new: str
    survives: str | None

    def lines(self, tree: Path) -> range:
        """Line numbers of the function, from 1."""
        node = self._node(_parsed(self._source(tree)))
        assert node.end_lineno is not None
        return range(node.lineno, node.end_lineno + 1)

    def applied(self, source: str) -> str:
        """The source of the file with the change applied; raises StaleMutantError."""
        node = self._node(_parsed(source))
        lines = source.splitlines(keepends=True)
        before, after = lines[: node.lineno - 1], lines[node.end_lineno :]
        body = "".join(lines[node.lineno - 1 : node.end_lineno])
        if body.count(self.old) != 1:
            raise StaleMutantError(f"{self.name}: old text occurs {body.count(self.old)} times")
        changed = body.replace(self.old, self.new)
        try:
            same = ast.dump(ast.parse(dedent(changed))) == ast.dump(ast.parse(dedent(body)))
        except SyntaxError as error:
            raise StaleMutantError(f"{self.name}: {error}") from error
        if same:
            raise StaleMutantError(f"{self.name}: the change changes nothing")
        return "".join([*before, changed, *after])

    def _source(self, tree: Path) -> str:
        try:
            return (tree / self.file).read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise StaleMutantError(f"{self.name}: there is no {self.file}") from error

    def _node(self, module: ast.Module) -> ast.FunctionDef | ast.ClassDef:
        node: ast.AST = module
        for part in self.function.split("."):
            inside = [child for child in _definitions(node) if child.name == part]
            if len(inside) > 1 and node is module:
                inside = [child for child in inside if child in module.body]
            if len(inside) != 1:
                raise StaleMutantError(f"{self.name}: {len(inside)} functions `{part}`")
            (node,) = inside
        assert isinstance(node, ast.FunctionDef | ast.ClassDef)
        return node


@lru_cache(maxsize=8)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


@lru_cache(maxsize=256)
def _definitions(node: ast.AST) -> tuple[ast.FunctionDef | ast.ClassDef, ...]:
    """The functions and classes at any depth of a node; expressions have none."""
    result: list[ast.FunctionDef | ast.ClassDef] = []
    inside = [node]
    while inside:
        for child in ast.iter_child_nodes(inside.pop()):
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                inside.append(child)
                if isinstance(child, ast.FunctionDef | ast.ClassDef):
                    result.append(child)
    return tuple(result)


def read_mutants(lists: Path = LISTS) -> list[Mutant]:
    """All mutants, in the order of files and entries."""
    return [mutant for path in sorted(lists.glob("*.yaml")) for mutant in _read(path)]


def _read(path: Path) -> Iterator[Mutant]:
    entries: list[dict[str, Any]] = yaml.load(path.read_bytes(), _LOADER)
    for number, entry in enumerate(entries, start=1):
        file, function = entry["at"].split(":")
        assert entry["expect"] in ("killed", "survives"), entry
        assert ("why" in entry) == (entry["expect"] == "survives"), entry
        name = f"{path.stem}-{number:03} {Path(file).stem}.{function}"
        yield Mutant(
            name, f"{PRODUCT}/{file}", function, entry["old"], entry["new"], entry.get("why")
        )

"""The sources of impctl, parsed and walked once for each process of the tests."""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "impctl"
Node = TypeVar("Node", bound=ast.AST)


@cache
def texts() -> Mapping[Path, str]:
    """The text of every module, in order of path."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def nodes(kind: type[Node]) -> Iterator[tuple[Path, Node]]:
    """Every node of this class with the file that it is in; do not change them."""
    for path, node in _by_kind()[kind]:
        assert isinstance(node, kind)
        yield path, node


@cache
def _by_kind() -> Mapping[type[ast.AST], list[tuple[Path, ast.AST]]]:
    kinds: dict[type[ast.AST], list[tuple[Path, ast.AST]]] = defaultdict(list)
    gc.disable()  # No collection, now or later, should scan a million nodes that all stay.
    try:
        for path, text in texts().items():
            for node in _walk(ast.parse(text)):
                kinds[type(node)].append((path, node))
    finally:
        gc.enable()
    gc.freeze()
    return kinds


def _walk(tree: ast.AST) -> list[ast.AST]:
    """As `ast.walk`, but faster and without `ctx`, which no test needs."""
    result = [tree]
    for node in result:  # grows meanwhile
        for name in node._fields:
            child = getattr(node, name, None)
            if isinstance(child, list):
                result += [one for one in child if isinstance(one, ast.AST)]
            elif isinstance(child, ast.AST) and name != "ctx":
                result.append(child)
    return result

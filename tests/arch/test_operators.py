"""Operators are asked, never looked at: outside `engine` nobody tells what kind one is or takes it
out of a circuit by its position.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.support.sources import PACKAGE, ROOT, nodes

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


def looks(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Where the nodes of a module look at an operator, and how."""
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
    """What the module calls operators: imported by themselves, or with their file."""
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
    assert {"Aggregate", "Join", "Project", "Select", "Top", "Union", "Circuit"} <= operators()


def test_nobody_outside_engine_looks_at_an_operator() -> None:
    by_file: dict[Path, list[ast.AST]] = defaultdict(list)
    for kind in (ast.ImportFrom, ast.Call, ast.MatchClass, ast.Compare, ast.Subscript):
        for file, node in nodes(kind):
            by_file[file].append(node)
    result = [
        f"{file.relative_to(ROOT)}:{line}: {what}"
        for file, inside in by_file.items()
        if ENGINE not in file.parents
        for line, what in looks(inside)
    ]
    assert not result, "\n" + "\n".join(result)


@pytest.mark.parametrize(
    "text",
    [
        "from impctl.engine.join import Join as J\nisinstance(x, J)",
        "from impctl.engine.join import Join\nisinstance(x, int | Join)",
        "from impctl.engine.join import Join\nisinstance(x, (int, Join))",
        "from impctl.engine import join\nisinstance(x, join.Join)",
        "from impctl.engine.topk import Top\nmatch x:\n    case Top():\n        pass",
        "from impctl.engine.circuit import Circuit\ntype(x) is Circuit",
        "compiled.circuit.operators[3]",
        "circuit._operators[:first]",
    ],
)
def test_a_look_is_noticed(text: str) -> None:
    assert len(list(looks([*ast.walk(ast.parse(text))]))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from impctl.plan.nodes import Join\nisinstance(x, Join)",
        "from impctl.engine.join import Join\nJoin('j', left, right, [])",
        "class A:\n    def f(self):\n        return self.operators[0]",
    ],
)
def test_other_things_may_be_looked_at(text: str) -> None:
    assert not list(looks([*ast.walk(ast.parse(text))]))

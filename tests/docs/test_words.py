"""Users read of ranges: `fragment` is the word of code, proofs and keys alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import ROOT, nodes, texts

OF_THE_CODE = {"soundness.md", "glossary.md", "architecture.md"}
"""Pages that speak as the code does, as decisions do."""
PAGES = sorted(
    page
    for page in [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    if page.name not in OF_THE_CODE
)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
FRAGMENT = re.compile(r"\bfragments?\b(?!:|\s+INTEGER)", re.IGNORECASE)
"""Neither the key of workload files nor the column of the catalog."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_speak_of_ranges(page: Path) -> None:
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    assert not [line for line in text.splitlines() if FRAGMENT.search(line)]


def sentences(tree: ast.AST) -> Iterator[str]:
    """Texts of several words, but for docstrings; what stands in backticks left out."""
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            text = CODE.sub("", node.value).strip()
            if " " in text:
                yield text


def test_messages_speak_of_ranges() -> None:
    result = [
        (path.name, text)
        for path, source in texts().items()
        if FRAGMENT.search(source)
        for text in sentences(ast.parse(source))
        if FRAGMENT.search(text)
    ]
    assert result == []


def test_help_speaks_of_ranges() -> None:
    """Docstrings of commands are what `--help` shows."""
    result = [
        path.name
        for path, node in nodes(ast.FunctionDef)
        if path.parent.name == "commands" and FRAGMENT.search(ast.get_docstring(node) or "")
    ]
    assert result == []

"""No file over 400 lines, no function over 50, a docstring on every module, no catch-all rooms."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE_LINES = 400
FUNCTION_LINES = 50
SOURCES = sorted((ROOT / "impctl").rglob("*.py"))
ALL = SOURCES + sorted((ROOT / "tests").rglob("*.py"))
PAGES = [
    path
    for path in sorted((ROOT / "impctl").rglob("*"))
    if path.suffix in (".js", ".css", ".html") and ".min." not in path.name
]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_files_are_short() -> None:
    counts = {
        name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in [*ALL, *PAGES]
    }
    assert PAGES
    assert not {path: count for path, count in counts.items() if count > FILE_LINES}


def test_functions_fit_a_screen() -> None:
    found = []
    for path in ALL:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    found.append(f"{name(path)}:{node.lineno}: `{node.name}` has {lines} lines")
    assert not found, "\n" + "\n".join(found)


def test_every_module_says_what_it_is() -> None:
    missing = [
        name(path)
        for path in SOURCES
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not missing


def test_no_room_or_file_is_a_catch_all() -> None:
    banned = {"utils", "util", "helpers", "helper", "common", "core", "misc"}
    assert not [name(path) for path in SOURCES if banned & {path.stem, *path.parts}]

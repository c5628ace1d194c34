"""Folders one can take in at a glance, and signs that are true.

No folder of the package holds more than 30 files; `app` itself holds use cases and nothing else,
and says so in each; a room's name in a docstring or a page is one that is there.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "impctl"
FOLDER_FILES = 30
SIGN = "Use case:"
_REFERENCE = re.compile(r"`((?:\w+\.)+(?!py`|yaml`)\w+)`")


def opens_with_sign(file: Path) -> bool:
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.startswith(SIGN)


def test_folders_are_small() -> None:
    folders = [PACKAGE, *(path for path in PACKAGE.rglob("*") if path.is_dir())]
    counts = {str(f.relative_to(ROOT)): len(list(f.glob("*.py"))) for f in folders}
    assert not {folder: count for folder, count in counts.items() if count > FOLDER_FILES}


def test_app_itself_holds_use_cases_and_nothing_else() -> None:
    app = PACKAGE / "app"
    here = [file for file in app.glob("*.py") if file.stem != "__init__"]
    assert here
    assert not [file.name for file in here if not opens_with_sign(file)]
    below = [file for file in PACKAGE.rglob("*.py") if file.parent != app]
    assert not [str(file.relative_to(ROOT)) for file in below if opens_with_sign(file)]


def test_every_room_and_file_named_in_words_is_there() -> None:
    """`room.file` and `room.file.Name` in docstrings, comments and pages."""
    tops = {path.stem for path in PACKAGE.iterdir() if not path.stem.startswith("_")}
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages += [*(ROOT / "docs").glob("*.md"), *PACKAGE.rglob("*.py")]
    found = []
    for page in pages:
        for reference in _REFERENCE.findall(page.read_text(encoding="utf-8")):
            parts = reference.removeprefix("impctl.").split(".")
            is_setting = (
                parts[0] == "spark" and not PACKAGE.joinpath(*parts[:2]).with_suffix(".py").exists()
            )
            if parts[0] in tops and not is_setting and not _is_there(parts):
                found.append(f"{page.relative_to(ROOT)}: `{reference}`")
    assert not found, "\n" + "\n".join(sorted(set(found)))


def _is_there(parts: list[str]) -> bool:
    """Whether the package has this module, or a module and in it this name."""
    for length in range(len(parts), 0, -1):
        place = PACKAGE.joinpath(*parts[:length])
        file = place.with_suffix(".py")
        if file.exists() or place.is_dir():
            rest = parts[length:]
            if not rest:
                return True
            source = file if file.exists() else place / "__init__.py"
            return re.search(rf"\b{rest[0]}\b", source.read_text(encoding="utf-8")) is not None
    return False

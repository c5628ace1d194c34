"""Every module that a docstring, a comment or a page names exists; no module is a catch-all."""

from __future__ import annotations

import re

from tests.support.sources import PACKAGE, ROOT, texts

_REFERENCE = re.compile(r"`((?:\w+\.)+(?!py`|yaml`)\w+)`")


def test_no_package_or_module_is_a_catch_all() -> None:
    banned = {"utils", "util", "helpers", "helper", "common", "core", "misc"}
    assert not [path for path in texts() if banned & {path.stem, *path.relative_to(ROOT).parts}]


def test_every_module_named_in_text_exists() -> None:
    """`package.module` and `package.module.Name` in docstrings, comments and pages."""
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
            is_setting = (
                parts[0] == "spark" and not PACKAGE.joinpath(*parts[:2]).with_suffix(".py").exists()
            )
            if parts[0] in tops and not is_setting and not _exists(parts):
                result.append(f"{page.relative_to(ROOT)}: `{reference}`")
    assert not result, "\n" + "\n".join(sorted(set(result)))


def _exists(parts: list[str]) -> bool:
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

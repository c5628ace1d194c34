"""The suites that come with impctl, and which file a word of the command line means.

Law: a file that is there wins over a shipped suite of that name.
Out of scope: reading suites (`workload.suites`).
"""

from __future__ import annotations

from pathlib import Path

from impctl.errors import UsageError
from impctl.workload.reading import suggestion
from impctl.workload.suites import holds_suite

_PACKAGE = Path(__file__).resolve().parents[2]
_FOLDERS = (_PACKAGE / "suites", _PACKAGE.parent / "workloads" / "bench")
"""Where they lie in an installed package, and in a checkout without symbolic links."""


def shipped_suites() -> dict[str, Path]:
    """Files of the shipped suites by name, in the order of their names."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    if folder is None:
        return {}
    return {path.stem: path.resolve() for path in sorted(folder.glob("*.yaml"))}


def suite_file(word: str) -> Path | None:
    """The suite that `word` means; None where it means something else, or nothing."""
    path = Path(word)
    if path.is_file():
        return path if holds_suite(path) else None
    return shipped_suites().get(word)


def can_only_name_a_suite(word: str) -> bool:
    """Whether a word is neither a file that is there nor looks like the path of one."""
    path = Path(word)
    return path.name == word and not path.suffix and not path.exists()


def unknown_suite(word: str) -> UsageError:
    """The error for a word that names no suite, with the names there are."""
    return UsageError(
        f"`{word}` is neither a file nor a built-in suite",
        code="suite_unknown",
        hint=suggestion(word, list(shipped_suites()), "built-in suites"),
    )

"""What impctl runs on, in which versions, against the ranges that its own package declares.

Law: nothing is imported, only installed metadata read; the ranges are those of `pyproject.toml` in
a checkout, else of the installed package, so that they are written down once.
Out of scope: what to say about it (`app.examining.surroundings`), Java (`spark.session`).
"""

from __future__ import annotations

import platform
import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any

from impctl.values import dataclass

_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*\(?([^;)]*)\)?\s*(?:;.*)?")
_CLAUSE = re.compile(r"(>=|<=|==|!=|~=|>|<)\s*([0-9][0-9a-zA-Z.*]*)")
_NUMBERS = re.compile(r"\d+")
_PRE_RELEASE = re.compile(r"\d(?:a|b|rc|\.?dev)\d")


@dataclass(frozen=True, slots=True)
class Installed:
    """One requirement and what is there; `found` None is not installed, `wanted` the range."""

    name: str
    wanted: str
    found: str | None

    @property
    def is_supported(self) -> bool:
        """Whether the version found is within the range."""
        return self.found is not None and is_within(self.found, self.wanted)


def installed() -> tuple[Installed, ...]:
    """Python first, then every package that impctl cannot do without; empty where nobody says."""
    python, packages = _declared()
    if python is None:
        return ()
    result = [Installed("python", python, platform.python_version())]
    for name, wanted in packages:
        result.append(Installed(name, wanted, installed_version(name)))
    return tuple(result)


def installed_version(package: str) -> str | None:
    """The version of an installed package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def is_within(result: str, wanted: str) -> bool:
    """Whether a version meets every clause of a range such as `>=4.1,<5`."""
    return all(_meets(result, sign, limit) for sign, limit in _CLAUSE.findall(wanted))


def _meets(result: str, sign: str, limit: str) -> bool:
    mine, theirs = _numbers(result), _numbers(limit)
    length = max(len(mine), len(theirs))
    order = _padded(mine, length), _padded(theirs, length)
    # 4.1.0rc1 comes before 4.1.0.
    is_early = order[0] == order[1] and _PRE_RELEASE.search(result) is not None
    match sign:
        case ">=":
            return order[0] >= order[1] and not is_early
        case ">":
            return order[0] > order[1]
        case "<=":
            return order[0] <= order[1]
        case "<":
            return order[0] < order[1]
        case "==":
            return order[0] == order[1]
        case "!=":
            return order[0] != order[1]
        case _:
            return order[0] >= order[1] and mine[: len(theirs) - 1] == theirs[:-1]


def _numbers(text: str) -> tuple[int, ...]:
    """The release numbers that a version begins with."""
    release = re.match(r"[\d.]*", text)
    return tuple(int(part) for part in _NUMBERS.findall(release.group() if release else ""))


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return numbers + (0,) * (length - len(numbers))


def _declared() -> tuple[str | None, list[tuple[str, str]]]:
    """The range of Python and those of the packages."""
    project = _of_checkout()
    if project is not None:
        return project["requires-python"], list(_read(project["dependencies"]))
    try:
        return metadata("impctl")["Requires-Python"], list(_read(requires("impctl") or ()))
    except PackageNotFoundError:
        return None, []


def _of_checkout() -> dict[str, Any] | None:
    """The `project` table of the file beside the package, where it is impctl's own."""
    try:
        project = tomllib.loads(_PROJECT.read_text(encoding="utf-8")).get("project", {})
    except (OSError, tomllib.TOMLDecodeError):
        return None
    return project if project.get("name") == "impctl" else None


def _read(requirements: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and range of each requirement that always holds, not only for an extra."""
    for text in requirements:
        parts = _REQUIREMENT.fullmatch(text.strip())
        if parts is not None and "extra ==" not in text:
            yield parts[1], parts[2].strip()

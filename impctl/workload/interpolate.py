"""Variables inside scalars of the workload file: `${VAR}`, `${VAR:-default}` and `$$` for `$`.

Law: one pass, left to right, on a scalar that YAML has already delimited; so a value can neither
break the structure of the file nor bring in further variables, and no message ever shows one.
A default serves where the variable is unset or empty, as in a shell. A `$` before anything else
stands for itself. Out of scope: which scalars are resolved (`workload.reading`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from impctl.values import dataclass
from impctl.workload.models import TextPiece

_REFERENCE = re.compile(r"\$\$|\$\{([^}]*)(\}?)")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with a reference; `offset` is its place in the text as written."""

    message: str
    hint: str
    offset: int


@dataclass(frozen=True, slots=True)
class Resolved:
    """Text with its variables resolved, and where each stretch of it came from."""

    text: str
    pieces: tuple[TextPiece, ...]
    faults: tuple[Fault, ...]


def has_references(text: str) -> bool:
    """Whether resolving could change the text."""
    return _REFERENCE.search(text) is not None


def resolve_variables(text: str, env: Mapping[str, str]) -> Resolved:
    """The text with every reference replaced; faults instead of values that cannot be had."""
    parts: list[str] = []
    pieces: list[TextPiece] = []
    faults: list[Fault] = []
    written = 0
    done = 0

    def add(part: str, source: int, is_literal: bool) -> None:
        nonlocal written
        if part:
            parts.append(part)
            pieces.append(TextPiece(written, source, is_literal))
            written += len(part)

    for match in _REFERENCE.finditer(text):
        add(text[done : match.start()], done, True)
        done = match.end()
        if match.group() == "$$":
            add("$", match.start(), False)
            continue
        value = _value_of(match, env)
        if isinstance(value, Fault):
            faults.append(value)
        else:
            add(value, match.start(), False)
    add(text[done:], done, True)
    return Resolved("".join(parts), tuple(pieces), tuple(faults))


def _value_of(match: re.Match[str], env: Mapping[str, str]) -> str | Fault:
    inside, closing = match.groups()
    if not closing:
        return Fault(
            "A variable that starts with `${` is never closed",
            "close it with `}`, or write `$$` for a `$` sign",
            match.start(),
        )
    parsed = _VARIABLE.fullmatch(inside)
    if parsed is None or (parsed[2] is not None and "${" in parsed[2]):
        return Fault(
            "A `${...}` is not a variable impctl can resolve",
            "write `${NAME}` or `${NAME:-default}` (a default cannot contain another variable), "
            "or `$${` for the characters `${`",
            match.start(),
        )
    name, default = parsed.groups()
    value = env.get(name)
    if default is not None and not value:
        return str(default)
    if value is None:
        return Fault(
            f"Variable `{name}` is not set",
            f"set `{name}` in the environment, or give a default: `${{{name}:-value}}`",
            match.start(),
        )
    return value

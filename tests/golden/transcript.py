"""What a command prints, without what differs from run to run, and how two such records differ.

A command's output is recorded twice:

- its *values*: what must not change. Of a JSON document the whole structure, of text the exit code,
  the streams that were written to and the rows of answers. Numbers that depend on the machine and
  prose are replaced by placeholders, which `fields.yaml` assigns by key.
- its *wording*: the text as it was printed, and the prose of JSON documents. Only times, sizes,
  paths and the like are replaced, wherever they stand.

Values are compared through `renames.yaml`, so that a renamed key does not need a new record.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ROWS_ON_STDOUT = ("query", "changes")
"""Commands whose stdout holds rows and nothing else; so does that of `why --without`."""


@dataclass(frozen=True)
class Printed:
    """The outcome of one command."""

    words: Sequence[str]
    code: int
    stdout: str
    stderr: str

    @property
    def is_json(self) -> bool:
        return "--json" in self.words


def values(printed: Printed) -> dict[str, Any]:
    """The values of a command's output."""
    shape: dict[str, Any] = {"exit": printed.code}
    if printed.is_json:
        lines = printed.stdout.splitlines()
        documents = [json.loads(line) for line in lines]
        shape["documents"] = [document_values(one, (str(one["command"]),)) for one in documents]
    elif _is_rows(printed.words):
        shape["rows"] = _table_rows(printed.stdout)
    else:
        shape["stdout"] = bool(printed.stdout)
    shape["stderr"] = bool(printed.stderr)
    return shape


def wording(printed: Printed, told: str = "") -> str:
    """The wording of a command's output; of JSON the prose that `told` does not hold already."""
    heading = f"$ impctl {' '.join(printed.words)}"
    errors = [f"! {line}".rstrip() for line in filtered(printed.stderr).splitlines()]
    if not printed.is_json:
        ending = [f"[exit code {printed.code}]"] if printed.code else []
        return "\n".join([heading, *filtered(printed.stdout).splitlines(), *errors, *ending, ""])
    known = " ".join(told.split())
    documents = [json.loads(line) for line in printed.stdout.splitlines()]
    found = [part for one in documents for part in prose(one, (str(one["command"]),))]
    texts = [(key, filtered(text)) for key, text in found]
    new = [f"{key}: {text}" for key, text in texts if " ".join(text.split()) not in known]
    lines = [*dict.fromkeys(new), *errors]
    return "\n".join([heading, *lines, ""]) if lines else ""


# Values -------------------------------------------------------------------------------------------


def document_values(document: Any, path: tuple[str, ...] = ()) -> Any:
    """A JSON document, or a part of one, with placeholders in place of what may change."""
    if isinstance(document, dict):
        return {key: document_values(part, (*path, key)) for key, part in document.items()}
    if isinstance(document, list) and not isinstance(_placeholder(path), str):
        return [document_values(part, path) for part in document]
    placeholder = _placeholder(path)
    if placeholder is None or document in (None, "", [], {}):
        if isinstance(document, float):
            return float(f"{document:.{_DIGITS}g}")
        return _same_everywhere(document) if isinstance(document, str) else document
    if placeholder != "<prose>":
        return placeholder
    if isinstance(document, list):
        return [document_values(part, path) for part in document]
    return _prose_placeholder(str(document))


def names_in(message: str) -> list[str]:
    """What stands in backticks in a message, paths shortened."""
    return sorted(set(re.findall(r"`([^`]+)`", filtered(message))))


def prose(document: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Every text of a document that `fields.yaml` calls prose, after its key."""
    if isinstance(document, dict):
        for key, part in document.items():
            yield from prose(part, (*path, key))
    elif isinstance(document, list):
        for part in document:
            yield from prose(part, path)
    elif isinstance(document, str) and document and _placeholder(path) == "<prose>":
        yield ".".join(path), document


@cache
def _placeholder(path: tuple[str, ...]) -> str | None:
    """What stands for the value of a key, by the longest pattern in `fields.yaml` that fits."""
    best = None
    for pattern, placeholder in _fields():
        parts = pattern.split(".")
        ending = path[-len(parts) :]
        if len(ending) == len(parts) and all(map(fnmatchcase, ending, parts)):
            rank = (len(parts), "*" not in pattern)
            if best is None or rank > best[0]:
                best = (rank, placeholder)
    return None if best is None or best[1] == "exact" else best[1]


@cache
def _fields() -> tuple[tuple[str, str], ...]:
    """Patterns of keys with their placeholders, those of renamed keys too."""
    groups = yaml.safe_load((HERE / "fields.yaml").read_text(encoding="utf-8"))
    found = [(name, placeholder) for placeholder, names in groups.items() for name in names]
    renamed = Renames.load()
    return (*found, *((renamed.pattern(name), placeholder) for name, placeholder in found))


def _prose_placeholder(text: str) -> str:
    """`<prose>`, with the stable code that may stand in brackets at its end."""
    code = re.search(r"\[[a-z_]+\]$", text)
    return f"<prose {code.group()}>" if code else "<prose>"


def _is_rows(words: Sequence[str]) -> bool:
    return words[0] in ROWS_ON_STDOUT or (words[0] == "why" and "--without" in words)


def _table_rows(text: str) -> list[str]:
    """The lines of a table without its rules and the blanks that align columns."""
    text = _LONG_NUMBER.sub(_rounded, _same_everywhere(text))
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in lines if line.strip("─ ")]


# Filters ------------------------------------------------------------------------------------------

_EVERYWHERE = (
    (re.compile(r"part-\d+-[-0-9a-f]{36}-c\d+(\.\w+)?\.parquet"), "<data file>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[-0-9a-f]{22}\b"), "<id>"),
    (re.compile(r"\b(?=[0-9]*[a-f])[0-9a-f]{16,64}\b"), "<hash>"),
)
"""Names that are drawn at random."""

_DIGITS = 9
_LONG_NUMBER = re.compile(r"-?\b\d+\.\d{10,}\b")
"""A double with more digits than are the same on every kind of processor."""

_NUMBER = r"(?<![\w.@-])\d{1,3}(,\d{3})*(\.\d+)?"
_MOMENT = (
    # Moments that a script sets are long past, see `worlds.NOW`: later ones are the machine's.
    r"\b20(2[5-9]|[3-9]\d)-\d\d-\d\d"
    r"([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?"
)
_TEXT = tuple(
    (re.compile(pattern, re.MULTILINE), placeholder)
    for pattern, placeholder in (
        (_MOMENT, "<moment>"),
        (rf"({_NUMBER} and )?{_NUMBER} (B|kB|MB|GB|TB)\b", "<size>"),
        (rf"{_NUMBER} h \d\d\b", "<time>"),
        (rf"{_NUMBER} (ms|s|min|h|days?)\b", "<time>"),
        (r"\bprocess \d+ on host `[^`]*`", "process <number> on host `<host>`"),
        (r" \(Possible options: [^)]*\)", ""),
        (r"(^ *next change +).*", r"\1<forecast>"),
        (r"\(\d+ runs?\)", "(<count> runs)"),
        (r"\bnoise \d+%", "noise <share>"),
        (rf"{_NUMBER}×", "<ratio>"),
        (r"\bJava \d+ at \S+ \(\w+\)", "Java <version> at <path>"),
        (r"\b\d+\.\d+\.\d+\b", "<version>"),
        (r"<version> and \d+ more are", "<version> and <count> more are"),
    )
)
"""Measured quantities. What the parser of the command line suggests depends on its release, and how
many commits count as one change on how quickly they were made."""

_BLANKS = re.compile(r"(?<=\S) {2,}")
_RULE = re.compile(r"(-{4,}|─{4,})")


def filtered(text: str) -> str:
    """The text without measured quantities, paths and random names.

    Where a number was replaced, blanks that align columns and rules under headings are shortened,
    because their number depends on it.
    """
    found = _same_everywhere(text)
    replaced = _LONG_NUMBER.sub(_rounded, found)
    for pattern, placeholder in _TEXT:
        replaced = pattern.sub(placeholder, replaced)
    if replaced != found:
        replaced = _RULE.sub(lambda rule: rule.group()[:4], _BLANKS.sub("  ", replaced))
    return replaced


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number.group()):.{_DIGITS}g}"


def _same_everywhere(text: str) -> str:
    """The text with paths and random names replaced."""
    for folder, placeholder in ((Path.cwd(), "<folder>"), (ROOT, "<root>")):
        for path in dict.fromkeys((str(folder), str(folder.resolve()))):
            text = text.replace(path, placeholder)
    for pattern, placeholder in _EVERYWHERE:
        text = pattern.sub(placeholder, text)
    return text


# Comparing ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Renames:
    """Keys, names and values that have been renamed since the values were recorded.

    A key may be preceded by those it is in (`steps.action`); the longest entry that fits counts. A
    key renamed to nothing (`~`) is gone.
    """

    keys: Mapping[str, str | None]
    names: Mapping[str, str]

    @classmethod
    @cache
    def load(cls) -> Renames:
        """Those of `renames.yaml`."""
        entries = yaml.safe_load((HERE / "renames.yaml").read_text(encoding="utf-8"))
        return cls(entries["keys"] or {}, entries["names"] or {})

    def applied(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """A recorded value as it would be recorded now."""
        if isinstance(value, dict):
            renamed = {key: self.key((*path, key)) for key in value}
            return {
                renamed[key]: self.applied(part, (*path, key))
                for key, part in value.items()
                if renamed[key] is not None
            }
        if isinstance(value, list):
            return [self.applied(part, path) for part in value]
        return self.names.get(value, value) if isinstance(value, str) else value

    def key(self, path: tuple[str, ...]) -> str | None:
        """The present name of the last key of a path."""
        for start in range(len(path)):
            name = ".".join(path[start:])
            if name in self.keys:
                return self.keys[name]
        return path[-1]

    def pattern(self, pattern: str) -> str:
        """The same for a pattern of `fields.yaml`."""
        *outer, last = pattern.split(".")
        return ".".join([*outer, self.key((*outer, last)) or last])


_WIDTH = 100


def values_difference(recorded: Any, present: Any, renames: Renames) -> str:
    """What is otherwise in the present values, as a diff; empty where nothing is."""
    expected = renames.applied(recorded)
    if expected == present:
        return ""
    return difference(pretty(_ordered(expected)), pretty(_ordered(present)))


def difference(recorded: str, present: str) -> str:
    """A diff of two texts by lines; empty where they are equal."""
    lines = difflib.unified_diff(
        recorded.splitlines(), present.splitlines(), "recorded", "now", lineterm="", n=4
    )
    return "\n".join(lines)


def _ordered(value: Any) -> Any:
    """Keys in alphabetical order: the order in which they are printed is no part of the values."""
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return [_ordered(part) for part in value] if isinstance(value, list) else value


def pretty(value: Any, indent: str = "", taken: int = 0, *, packed: bool = False) -> str:
    """JSON in which what fits on a line is on one line; `taken` is the room used there already.

    With `packed`, neighbours share a line as far as they fit: for files, not for differences.
    """
    line = json.dumps(value, ensure_ascii=False)
    if taken + len(line) < _WIDTH or not isinstance(value, dict | list):
        return line
    inner = f"{indent}  "
    if isinstance(value, dict):
        heads = [f"{json.dumps(key, ensure_ascii=False)}: " for key in value]
        entries = [
            head + pretty(part, inner, len(inner) + len(head), packed=packed)
            for head, part in zip(heads, value.values(), strict=True)
        ]
    else:
        entries = [pretty(part, inner, len(inner), packed=packed) for part in value]
    lines = [entries[0]]
    for entry in entries[1:]:
        lines[-1] += ","
        is_short = "\n" not in lines[-1] + entry and not entry.startswith(("{", "["))
        if packed and is_short and len(inner) + len(lines[-1]) + len(entry) < _WIDTH:
            lines[-1] += f" {entry}"
        else:
            lines.append(entry)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([opening, *(inner + entry for entry in lines), indent + closing])

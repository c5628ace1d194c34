"""Golden records, and command output reduced to what is the same on every machine."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

HERE = Path(__file__).parent
_WIDTH = 100


class Record(Struct, frozen=True):
    """The values of a script, by the names of its steps, and its wording."""

    values: dict[str, Any]
    wording: str


class Golden(Struct, frozen=True):
    """The two files of one script."""

    name: str

    @property
    def values(self) -> Path:
        return HERE / "values" / f"{self.name}.json"

    @property
    def wording(self) -> Path:
        return HERE / "wording" / f"{self.name}.txt"

    def differences(self, record: Record, renames: Renames) -> str:
        """Describe how a record differs from the files, and what to do; empty if it does not."""
        expected = json.loads(self.values.read_text(encoding="utf-8"))
        in_values = values_difference(expected, record.values, renames)
        in_wording = text_difference(self.wording.read_text(encoding="utf-8"), record.wording)
        parts = [_VALUES_DIFFER.format(name=self.name, diff=in_values)] if in_values else []
        parts += [_WORDING_DIFFERS.format(name=self.name, diff=in_wording)] if in_wording else []
        return "\n".join(parts)


_VALUES_DIFFER = """\
The values of `{name}` differ from tests/golden/values/{name}.json:

{diff}

If a key or code was only renamed, add it to tests/golden/renames.yaml. If the new behaviour is
intended, record the values again: python -m tests.golden values {name}
"""

_WORDING_DIFFERS = """\
The wording of `{name}` differs from tests/golden/wording/{name}.txt:

{diff}

If the new wording is intended, record it again: python -m tests.golden wording {name}
"""


class Renames(Struct, frozen=True):
    """Renames since the values were recorded, from old names to new ones.

    `keys` are keys of JSON objects. An entry may name the enclosing keys too (`steps.action`); the
    longest matching entry applies. A key renamed to None has been removed. `names` are complete
    texts: codes, actions, words that a message puts in backticks.
    """

    keys: Mapping[str, str | None]
    names: Mapping[str, str]

    @classmethod
    @cache
    def load(cls) -> Renames:
        """Read `renames.yaml`."""
        entries = yaml.safe_load((HERE / "renames.yaml").read_text(encoding="utf-8"))
        return cls(entries["keys"] or {}, entries["names"] or {})

    def applied(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Apply the new names to a recorded value; `path` are the recorded keys leading to it."""
        if isinstance(value, dict):
            new_names = {key: self.key((*path, key)) for key in value}
            return {
                new_names[key]: self.applied(part, (*path, key))
                for key, part in value.items()
                if new_names[key] is not None
            }
        if isinstance(value, list):
            return [self.applied(part, path) for part in value]
        return self.names.get(value, value) if isinstance(value, str) else value

    def key(self, path: tuple[str, ...]) -> str | None:
        """The new name of the last key of a path."""
        for start in range(len(path)):
            name = ".".join(path[start:])
            if name in self.keys:
                return self.keys[name]
        return path[-1]


def values_difference(recorded: Any, new: Any, renames: Renames) -> str:
    """The difference between recorded and new values as a diff; empty if there is none."""
    expected = renames.applied(recorded)
    if expected == new:
        return ""
    # The order of keys is not part of the values.
    texts = [json_text(json.loads(json.dumps(one, sort_keys=True))) for one in (expected, new)]
    return text_difference(*texts)


def text_difference(recorded: str, new: str) -> str:
    """A diff of two texts by lines; empty if they are equal."""
    lines = difflib.unified_diff(
        recorded.splitlines(), new.splitlines(), "recorded", "new", lineterm="", n=4
    )
    return "\n".join(lines)


def json_text(value: Any, indent: str = "", used: int = 0, *, packed: bool = False) -> str:
    """Format JSON, with everything on one line that fits.

    `used` is the used width of the first line. With `packed`, short neighbors share a line. That
    suits files; a diff is easier to read with one entry per line.
    """
    line = json.dumps(value, ensure_ascii=False)
    if used + len(line) < _WIDTH or not isinstance(value, dict | list):
        return line
    inner = f"{indent}  "
    if isinstance(value, dict):
        heads = [f"{json.dumps(key, ensure_ascii=False)}: " for key in value]
        entries = [
            head + json_text(part, inner, len(inner) + len(head), packed=packed)
            for head, part in zip(heads, value.values(), strict=True)
        ]
    else:
        entries = [json_text(part, inner, len(inner), packed=packed) for part in value]
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


ROOT = HERE.parents[1]
_DIGITS = 9
"""Significant digits of a double that do not depend on the processor."""


class Output(Struct, frozen=True):
    """The output and the exit code of one command."""

    words: Sequence[str]
    code: int
    stdout: str
    stderr: str

    @property
    def is_json(self) -> bool:
        return "--json" in self.words

    @property
    def documents(self) -> list[Any]:
        """The JSON documents on stdout, one on each line."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def has_rows(self) -> bool:
        """Whether stdout has only rows of a result."""
        command = self.words[0]
        return command in ("query", "changes") or (command == "why" and "--without" in self.words)


def values(output: Output) -> dict[str, Any]:
    """The values of an output."""
    result: dict[str, Any] = {"exit": output.code}
    if output.is_json:
        result["documents"] = [json_values(one, (str(one["command"]),)) for one in output.documents]
    elif output.has_rows:
        result["rows"] = _table_rows(output.stdout)
    else:
        result["stdout"] = bool(output.stdout)
    result["stderr"] = bool(output.stderr)
    return result


def wording(output: Output, known: str = "") -> str:
    """The wording of an output; for JSON only prose that `known` does not contain."""
    heading = f"$ impctl {' '.join(output.words)}"
    errors = [f"! {line}".rstrip() for line in filtered(output.stderr).splitlines()]
    if not output.is_json:
        ending = [f"[exit code {output.code}]"] if output.code else []
        return "\n".join([heading, *filtered(output.stdout).splitlines(), *errors, *ending, ""])
    known = " ".join(known.split())
    prose = [part for one in output.documents for part in _prose(one, (str(one["command"]),))]
    texts = [(key, filtered(text)) for key, text in prose]
    new = [f"{key}: {text}" for key, text in texts if text and " ".join(text.split()) not in known]
    lines = [*dict.fromkeys(new), *errors]
    return "\n".join([heading, *lines, ""]) if lines else ""


# JSON ---------------------------------------------------------------------------------------------


def json_values(value: Any, path: tuple[str, ...] = ()) -> Any:
    """The values of a JSON document, or of its part under the keys of `path`."""
    if isinstance(value, dict):
        return {key: json_values(part, (*path, key)) for key, part in value.items()}
    placeholder = _placeholder(path)
    if isinstance(value, list) and placeholder in (None, _PROSE):
        return [json_values(part, path) for part in value if not _depends_on_load(part)]
    if placeholder is None or value in (None, "", []):
        return _portable(value)
    return _prose_values(str(value)) if placeholder == _PROSE else placeholder


def names_in(message: str) -> list[str]:
    """The names that a message puts in backticks."""
    return sorted(set(re.findall(r"`([^`]+)`", filtered(message))))


_PROSE = "<prose>"


def _prose_values(text: str) -> str:
    """Replace prose by a placeholder with the stable code at its end, if any."""
    code = re.search(r"\[[a-z_]+\]$", text)
    return f"<prose {code.group()}>" if code else _PROSE


def _prose(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The prose of a JSON document, each text with its key."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _prose(part, (*path, key))
    elif isinstance(value, list):
        for part in value:
            yield from _prose(part, path)
    elif isinstance(value, str) and not _depends_on_load(value) and _placeholder(path) == _PROSE:
        yield ".".join(path), value


def _depends_on_load(text: Any) -> bool:
    """Whether this is a warning of `bench` about a busy machine."""
    return isinstance(text, str) and "the machine was busy" in text


def _portable(value: Any) -> Any:
    """A value without paths and random names, and with portable digits."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return _without_names(value) if isinstance(value, str) else value


@cache
def _placeholder(path: tuple[str, ...]) -> str | None:
    """The placeholder of a key, from the longest matching pattern, preferably without `*`."""
    matches = []
    for pattern, placeholder in _fields():
        ending = path[-len(pattern) :]
        if len(ending) == len(pattern) and all(map(fnmatchcase, ending, pattern)):
            matches.append((len(pattern), "*" not in "".join(pattern), placeholder))
    return max(matches)[2] if matches else None


@cache
def _fields() -> tuple[tuple[tuple[str, ...], str], ...]:
    """The patterns of `fields.yaml` with their placeholders, under old and new names."""
    groups = yaml.safe_load((HERE / "fields.yaml").read_text(encoding="utf-8"))
    fields = [(tuple(name.split(".")), sign) for sign, names in groups.items() for name in names]
    renames = Renames.load()
    renamed = [((*path[:-1], renames.key(path) or path[-1]), sign) for path, sign in fields]
    return (*fields, *renamed)


# Text ---------------------------------------------------------------------------------------------


def filtered(text: str) -> str:
    """Remove measured quantities, paths and random names.

    If something is replaced, the blanks and rules that align a table are shortened, because their
    length depended on it.
    """
    text = _without_names(text)
    text = "".join(line for line in text.splitlines(True) if not _depends_on_load(line))
    replaced = _LONG_NUMBER.sub(_rounded, text)
    for pattern, placeholder in _QUANTITIES:
        replaced = pattern.sub(placeholder, replaced)
    if replaced != text:
        replaced = _RULE.sub(lambda rule: rule.group()[:4], _BLANKS.sub("  ", replaced))
    return replaced


def _table_rows(text: str) -> list[str]:
    """The lines of a table without its rule and without alignment."""
    text = _LONG_NUMBER.sub(_rounded, _without_names(text))
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in lines if line.strip("─ ")]


def _without_names(text: str) -> str:
    """A text without paths and random names."""
    if len(text) < _SHORTEST:
        return text
    for path, placeholder in _folders(os.getcwd()):
        text = text.replace(path, placeholder)
    for pattern, placeholder in _RANDOM_NAMES:
        text = pattern.sub(placeholder, text)
    return text


@cache
def _folders(current: str) -> tuple[tuple[str, str], ...]:
    resolved = str(Path(current).resolve())
    return (current, "<folder>"), (resolved, "<folder>"), (str(ROOT), "<root>")


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number.group()):.{_DIGITS}g}"


_SHORTEST = 5
"""Characters of the shortest path or random name."""
_RANDOM_NAMES = (
    (re.compile(r"part-\d+-[-0-9a-f]{36}-c\d+(\.\w+)?\.parquet"), "<data file>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[-0-9a-f]{22}\b"), "<id>"),
    (re.compile(r"\b(?=[0-9]*[a-f])[0-9a-f]{16,64}\b"), "<hash>"),
)

# Times set by scripts are in the past (`worlds.NOW`); later ones come from the system clock.
_MOMENT = r"\b20(2[5-9]|[3-9]\d)-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?"
_NUMBER = r"(?<![\w.@-])\d{1,3}(,\d{3})*(\.\d+)?"
_QUANTITIES = tuple(
    (re.compile(pattern, re.MULTILINE), placeholder)
    for pattern, placeholder in (
        (_MOMENT, "<moment>"),
        (rf"({_NUMBER} and )?{_NUMBER} (B|kB|MB|GB|TB)\b", "<size>"),
        (rf"{_NUMBER} h \d\d\b", "<time>"),
        (rf"{_NUMBER} (ms|s|min|h|days?)\b", "<time>"),
        (rf"{_NUMBER}×", "<ratio>"),
        (r"\bnoise \d+%", "noise <share>"),
        (r"\bprocess \d+ on host `[^`]*`", "process <number> on host `<host>`"),
        (r"\bJava \d+ at \S+ \(\w+\)", "Java <version> at <path>"),
        (r"\b\d+\.\d+\.\d+\b", "<version>"),
        (r"<version> and \d+ more are", "<version> and <count> more are"),
        # Commits in quick succession count as one change.
        (r"(^ *next change +).*", r"\1<forecast>"),
        # Estimates exclude runs that took unusually long.
        (r"\(\d+ runs?\)", "(<count> runs)"),
        # Suggestions of the option parser differ between its releases.
        (r" \(Possible options: [^)]*\)", ""),
    )
)
_LONG_NUMBER = re.compile(r"-?\b\d+\.\d{10,}\b")
_BLANKS = re.compile(r"(?<=\S) {2,}")
_RULE = re.compile(r"(-{4,}|─{4,})")

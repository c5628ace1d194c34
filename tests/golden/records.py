"""Golden records: the files in `values/` and `wording/`, and how new output is compared with them.

Wording is compared as text. Values are compared as JSON, after the entries of `renames.yaml` have
been applied to the recorded ones, so that a key with a new name does not need a new record.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
_WIDTH = 100


@dataclass(frozen=True)
class Record:
    """The values of a script, by the names of its steps, and its wording."""

    values: dict[str, Any]
    wording: str


@dataclass(frozen=True)
class Golden:
    """The two files of one script."""

    name: str

    @property
    def values(self) -> Path:
        return HERE / "values" / f"{self.name}.json"

    @property
    def wording(self) -> Path:
        return HERE / "wording" / f"{self.name}.txt"

    def write_values(self, record: Record) -> None:
        """Replace the values."""
        self.values.write_text(json_text(record.values, packed=True) + "\n", encoding="utf-8")

    def write_wording(self, record: Record) -> None:
        """Replace the wording."""
        self.wording.write_text(record.wording, encoding="utf-8")

    def differences(self, record: Record, renames: Renames) -> str:
        """How a record differs from the files, and what to do about it; empty if it does not."""
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


@dataclass(frozen=True)
class Renames:
    """What has been renamed since the values were recorded, old names to new ones.

    `keys` are keys of JSON objects. An entry may name the enclosing keys too (`steps.action`); the
    longest entry that matches wins. A key renamed to None has been removed. `names` are whole
    texts: codes, actions, words that a message puts in backticks.
    """

    keys: Mapping[str, str | None]
    names: Mapping[str, str]

    @classmethod
    @cache
    def load(cls) -> Renames:
        """The entries of `renames.yaml`."""
        entries = yaml.safe_load((HERE / "renames.yaml").read_text(encoding="utf-8"))
        return cls(entries["keys"] or {}, entries["names"] or {})

    def applied(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """A recorded value with the new names; `path` are the recorded keys that lead to it."""
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
    return text_difference(json_text(_sorted_keys(expected)), json_text(_sorted_keys(new)))


def text_difference(recorded: str, new: str) -> str:
    """A diff of two texts by lines; empty if they are equal."""
    lines = difflib.unified_diff(
        recorded.splitlines(), new.splitlines(), "recorded", "new", lineterm="", n=4
    )
    return "\n".join(lines)


def _sorted_keys(value: Any) -> Any:
    """The order of keys is not part of the values."""
    if isinstance(value, dict):
        return {key: _sorted_keys(value[key]) for key in sorted(value)}
    return [_sorted_keys(part) for part in value] if isinstance(value, list) else value


def json_text(value: Any, indent: str = "", used: int = 0, *, packed: bool = False) -> str:
    """JSON in which everything that fits on a line is on one line.

    `used` is how much of the first line is taken already. With `packed`, short neighbours share a
    line: good for files, while a diff is easier to read with one entry on each line.
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

"""Reading nodes as what the file should hold, with every problem noted and none raised.

Law: a function here returns None exactly when it has noted a problem (or an outer node did), so a
caller may go on and find more. Messages name the place in the document, never a value, since
values can come from variables. Out of scope: which keys the file knows (`workload.load`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from impctl.errors import Location, Problem
from impctl.values import dataclass
from impctl.workload.interpolate import Resolved, has_references, resolve_variables
from impctl.workload.models import CellValue
from impctl.workload.positions import PLAIN_TAG, Lines, index_of
from impctl.workload.scalars import ScalarFault, kind_of, plain_value

_STANDARD = "tag:yaml.org,2002:"
_TEXT_TAG, _MAP_TAG, _SEQUENCE_TAG = (_STANDARD + kind for kind in ("str", "map", "seq"))


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping: its text, its node and its value."""

    name: str
    key: Node
    value: Node


@dataclass(frozen=True, slots=True)
class YamlScalar:
    """A scalar that was read; wrapped because NULL is a value too."""

    value: CellValue
    written: str


@dataclass(slots=True)
class FileReading:
    """One pass over a file: where things stand, the variables, and the problems so far."""

    lines: Lines
    env: Mapping[str, str]
    _noted: dict[Problem, None] = field(default_factory=dict)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Problems so far, in file order."""
        return tuple(sorted(self._noted, key=_file_order))

    def at(self, node: Node) -> Location:
        """The place of a node."""
        return self.lines.at(index_of(node))

    def report(self, node: Node, message: str, hint: str | None = None) -> None:
        """Note a problem at a node; the same one twice (through an alias) counts once."""
        self.report_index(index_of(node), message, hint)

    def report_index(self, index: int, message: str, hint: str | None) -> None:
        """Note a problem at a character of the file."""
        sentence = message[:1].upper() + message[1:]
        self._noted.setdefault(Problem(sentence, self.lines.at(index), hint))

    def entries(self, node: Node | None, path: str) -> dict[str, Entry] | None:
        """Keys of a mapping, merges (`<<`) followed; double keys are a problem."""
        if node is None:
            return None
        if not isinstance(node, MappingNode):
            self._wrong_kind(node, path, "a mapping")
            return None
        if node.tag != _MAP_TAG:
            self._refuse_tag(node)
            return None
        own: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode) or key.tag not in (PLAIN_TAG, _TEXT_TAG):
                self.report(key, f"A key in {path} must be text", "write the key as one word")
            elif key.tag == PLAIN_TAG and key.value == "<<":
                for name, entry in self._merged(value, path).items():
                    merged.setdefault(name, entry)
            elif key.value in own:
                first = self.at(own[key.value].key)
                self.report(
                    key,
                    f"Key {shown(key.value)} appears twice in {path}",
                    f"remove one; the first is on line {first.line}",
                )
            else:
                own[key.value] = Entry(key.value, key, value)
        return {**own, **{k: v for k, v in merged.items() if k not in own}}

    def record(
        self, node: Node | None, path: str, required: Sequence[str], optional: Sequence[str] = ()
    ) -> dict[str, Node] | None:
        """Values of a mapping whose keys are known; unknown and missing keys are problems."""
        entries = self.entries(node, path)
        if node is None or entries is None:
            return None
        allowed = (*required, *optional)
        for name, entry in entries.items():
            if name not in allowed:
                self.report(
                    entry.key,
                    f"Key {shown(name)} is unknown in {path}",
                    suggestion(name, allowed, "allowed keys"),
                )
        for name in required:
            if name not in entries:
                self.report(node, f"Key `{name}` is missing in {path}", f"add `{name}:`")
        return {name: entry.value for name, entry in entries.items() if name in allowed}

    def columns(self, node: Node | None, path: str) -> dict[str, Entry] | None:
        """Keys of a mapping that are column names: at least one, none blank, none twice."""
        entries = self.entries(node, path)
        if node is None or entries is None:
            return None
        if not entries:
            self.report(node, f"{path} is empty", "give at least one column")
        seen: dict[str, str] = {}
        for name, entry in entries.items():
            if not name.strip():
                self.report(
                    entry.key, f"A column name in {path} is empty", "write the column's name"
                )
            elif name.lower() in seen:
                self.report(
                    entry.key,
                    f"{shown(seen[name.lower()])} and {shown(name)} in {path} are the same column",
                    "remove one; names are not case-sensitive in Spark",
                )
            seen.setdefault(name.lower(), name)
        return entries

    def elements(self, node: Node | None, path: str) -> list[Node] | None:
        """Nodes of a list."""
        if node is None:
            return None
        if not isinstance(node, SequenceNode):
            self._wrong_kind(node, path, "a list")
            return None
        if node.tag != _SEQUENCE_TAG:
            self._refuse_tag(node)
            return None
        return list(node.value)

    def cell(self, node: Node | None, path: str, expected: str) -> YamlScalar | None:
        """A scalar with its variables resolved and its type as YAML reads it."""
        if node is None:
            return None
        if not isinstance(node, ScalarNode):
            self._wrong_kind(node, path, expected)
            return None
        resolved = self._resolve(node)
        if resolved is None:
            return None
        if node.tag != PLAIN_TAG:
            return YamlScalar(resolved.text, resolved.text)
        try:
            return YamlScalar(plain_value(resolved.text), resolved.text)
        except ScalarFault as fault:
            self.report(node, f"{path}: {fault.message}", fault.hint)
            return None

    def text(self, node: Node | None, path: str) -> str | None:
        """Text that is not blank; a variable's value counts as text whatever it looks like."""
        resolved = self.resolved_text(node, path)
        return None if resolved is None else resolved.text

    def resolved_text(self, node: Node | None, path: str) -> Resolved | None:
        """As `text`, with the origin of each stretch."""
        if node is None:
            return None
        if not isinstance(node, ScalarNode):
            self._wrong_kind(node, path, "text")
            return None
        resolved = self._resolve(node)
        if resolved is None:
            return None
        if node.tag == PLAIN_TAG and not has_references(node.value):
            cell = self.cell(node, path, "text")
            if cell is None:
                return None
            value = cell.value
            if value is None or isinstance(value, int | float):
                hint = "write the text" if value is None else "put quotes around it"
                self.report(node, f"{path} must be text, not {kind_of(value)}", hint)
                return None
        if not resolved.text.strip():
            self.report(node, f"{path} is empty", "write some text")
            return None
        return resolved

    def whole_number(self, node: Node | None, path: str, most: int, usual: str) -> int | None:
        """A whole number from 1 to `most`; `usual` says what is common."""
        cell = self.cell(node, path, "a whole number")
        if node is None or cell is None:
            return None
        if not isinstance(cell.value, int) or isinstance(cell.value, bool):
            message = f"{path} must be a whole number, not {kind_of(cell.value)}"
            self.report(node, message, "write a number without quotes, for example 16")
            return None
        if not 1 <= cell.value <= most:
            self.report(node, f"{path} must be from 1 to {most}", usual)
            return None
        return cell.value

    def choice(
        self, node: Node | None, path: str, options: Sequence[str], *, beside: str = ""
    ) -> str | None:
        """One of a few words; `beside` says what else than a word may stand there."""
        listed = ", ".join(f"`{option}`" for option in options)
        value = self.text(node, path)
        if node is None or value is None or value in options:
            return value
        hint = suggestion(value, options, None) or f"write one of these words{beside}"
        self.report(node, f"{path} must be one of {listed}", hint)
        return None

    def settings(self, node: Node | None, path: str) -> dict[str, str] | None:
        """Settings: any keys, values as written (`8`, `false` and `4g` alike become text)."""
        entries = self.entries(node, path)
        if entries is None:
            return None
        settings: dict[str, str] = {}
        for name, entry in entries.items():
            where = inside(path, name)
            cell = self.cell(entry.value, where, "text, a number, or true or false")
            if cell is None:
                continue
            if cell.value is None:
                self.report(entry.value, f"{where} is empty", "write a value, or ''")
            else:
                settings[name] = (
                    cell.written.lower() if isinstance(cell.value, bool) else cell.written
                )
        return settings

    def _merged(self, value: Node, path: str) -> dict[str, Entry]:
        sources = value.value if isinstance(value, SequenceNode) else [value]
        result: dict[str, Entry] = {}
        for source in sources:
            for name, entry in (self.entries(source, f"`<<` of {path}") or {}).items():
                result.setdefault(name, entry)
        return result

    def _resolve(self, node: ScalarNode) -> Resolved | None:
        if node.tag not in (PLAIN_TAG, _TEXT_TAG):
            self._refuse_tag(node)
            return None
        resolved = resolve_variables(node.value, self.env)
        # Offsets in the scalar match the file only on the scalar's own line, without escapes.
        on_one_line = node.start_mark.line == node.end_mark.line and node.style is None
        for fault in resolved.faults:
            shift = fault.offset if on_one_line else 0
            self.report_index(index_of(node) + shift, fault.message, fault.hint)
        if resolved.faults:
            return None
        if any("\ud800" <= character <= "\udfff" for character in resolved.text):
            self.report(
                node, "The value of a variable is not text", "set the variable to UTF-8 text"
            )
            return None
        return resolved

    def _refuse_tag(self, node: Node) -> None:
        tag = str(node.tag).removeprefix(_STANDARD)
        self.report(node, f"Tag {shown('!' + tag.lstrip('!'))} is not allowed", "remove the tag")

    def _wrong_kind(self, node: Node, path: str, expected: str) -> None:
        if isinstance(node, MappingNode):
            got = "a mapping"
        elif isinstance(node, SequenceNode):
            got = "a list"
        elif isinstance(node, ScalarNode) and node.tag == PLAIN_TAG:
            try:
                got = kind_of(plain_value(node.value))
            except ScalarFault:
                got = "a single value"
        else:
            got = "text"
        hint = {
            "a mapping": "write `key: value` pairs",
            "a list": "write `[...]`, or lines that start with `- `",
        }.get(expected, "write a single value")
        self.report(node, f"{path} must be {expected}, not {got}", hint)


def inside(path: str, name: str) -> str:
    """The path of a key inside the place `path`, as messages show it."""
    return f"{path[:-1]}.{shown(name)[1:]}"


def shown(name: str) -> str:
    """A name as messages show it: in backticks, printable and not endless."""
    printable = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in name[:81]
    )
    return f"`{printable if len(name) <= 80 else printable[:77] + '...'}`"


def written_at(node: Node | None, resolved: str) -> str:
    """A name as the file writes it: with its variables, so that no value of one is shown."""
    return shown(node.value if isinstance(node, ScalarNode) else resolved)


def suggestion(name: str, known: Sequence[str], otherwise: str | None) -> str | None:
    """A did-you-mean, else the list of what there is under the heading `otherwise`."""
    close = get_close_matches(name[:81].lower(), [option.lower() for option in known], n=1)
    for option in known:
        if close and option.lower() == close[0]:
            return f"did you mean `{option}`?"
    if otherwise is None or not known:
        return None
    listed = ", ".join(f"`{option}`" for option in known[:20])
    return f"{otherwise}: {listed}{', ...' if len(known) > 20 else ''}"


def _file_order(problem: Problem) -> tuple[int, int]:
    place = problem.location
    return (0, 0) if place is None else (place.line, place.column)

"""YAML read into nodes that keep their position, with every problem noted."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Never, TypeVar

import yaml
from msgspec import Struct, field
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from impctl.errors import Location, Problem
from impctl.sql.names import TableNames
from impctl.workload.models import QuerySpec, SqlOrigin, SqlRun, TextPiece, ViewSpec
from impctl.workload.scalars import ScalarFault, YamlScalar, kind_text, plain_value

# YAML text composed to nodes with their position. Law: composing never builds Python objects from
# tags and is bounded in depth, in size after aliases and in recursion. Lines and columns are those
# of an editor.

MAX_DEPTH = 40
"""Levels of nesting, aliases followed; the format needs 7."""

MAX_EXPANDED = 4_000_000
"""Characters and nodes the file may expand to through aliases."""

MAX_NODES = 20_000
"""Keys and values of a file as written; reading so many takes some seconds."""

PLAIN_TAG = "impctl:plain"
"""Tag of a scalar without quotes or explicit tag; `workload.yaml` assigns its type."""

_LINE_BREAK = re.compile(r"\r\n|\n|\r")
_BEYOND = re.compile(r"\\U(?!000|0010)[0-9A-Fa-f]{8}")


class YamlFault(Exception):
    """The text is not YAML, exceeds the bounds, or has an invalid reference to a variable; `index`
    is the position in the text as written."""

    def __init__(self, message: str, index: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.index = index
        self.hint = hint


class Lines:
    """Line and column of a character index, 1-based, counted as editors do."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self._starts = [0, *(match.end() for match in _LINE_BREAK.finditer(text))]

    def location(self, index: int) -> Location:
        line = bisect_right(self._starts, index)
        return Location(self.file, line, index - self._starts[line - 1] + 1)


class _Bounded(Composer):
    """A composer that bounds nesting and leaves plain scalars untyped."""

    depth = 0
    nodes = 0
    yaml_implicit_resolvers = {None: [(PLAIN_TAG, re.compile(""))]}  # noqa: RUF012  # as resolvers

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self.depth += 1
        self.nodes += 1
        if self.depth > MAX_DEPTH:
            self._refuse(
                f"The file has more than {MAX_DEPTH} levels of nesting", "flatten the file"
            )
        if self.nodes > MAX_NODES:
            self._refuse(
                f"The file has more than {MAX_NODES:,} keys and values",
                "put rows to insert into a Parquet file and refer to it with `file:`",
            )
        node = super().compose_node(parent, index)
        self.depth -= 1
        if isinstance(node, ScalarNode):
            node.style = node.style or None  # libyaml calls plain style ""
            if not node.value.isascii():
                node.value = _joined(node)
        return node

    def _refuse(self, message: str, hint: str) -> Never:
        mark = self.peek_event().start_mark  # type: ignore[attr-defined]  # a parser's
        raise YamlFault(message, mark.index, hint)


class _Loader(_Bounded, yaml.SafeLoader):
    """PyYAML's pure Python parser, whose messages and positions the faults report."""


if yaml.__with_libyaml__:

    class _FastLoader(_Bounded, yaml.CSafeLoader):
        """The events of libyaml's parser, read twenty times as fast."""

        def __init__(self, text: str) -> None:
            _Bounded.__init__(self)
            yaml.CSafeLoader.__init__(self, text)


def compose(text: str) -> Node | None:
    """The root node of the one document in `text`, None if it is empty; `YamlFault` if invalid."""
    try:
        root = _root_of(text)
    except yaml.MarkedYAMLError as error:
        raise _syntax_fault(error, text) from None
    except yaml.reader.ReaderError as error:
        raise YamlFault(
            f"The file contains a character that YAML does not allow: U+{int(error.character):04X}",
            error.position,
            "remove it, or write it as an escape inside double quotes",
        ) from None
    if root is None or (root.tag == PLAIN_TAG and root.value == ""):
        return None
    if "&" in text:  # or no alias can refer to anything
        _check_expansion(root)
    return root


def _root_of(text: str) -> Node | None:
    if yaml.__with_libyaml__ and "\ufeff" not in text:  # which libyaml does not count
        try:
            return _FastLoader(text).get_single_node()
        except yaml.YAMLError:
            pass  # PyYAML's parser has better positions of errors, and reads more texts.
    try:
        return _Loader(text).get_single_node()
    except (ValueError, OverflowError) as error:
        raise _value_fault(error, text) from None


def index_of(node: Node) -> int:
    """Index of the node's first character in the text."""
    return int(node.start_mark.index)


def _joined(node: ScalarNode) -> str:
    """The scalar's text with surrogate pairs, as JSON escapes them, joined."""
    try:
        return str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        problem = "An escape represents half a character (a surrogate)"
        hint = "write the character itself, or both halves"
        raise YamlFault(problem, index_of(node), hint) from None


def _value_fault(error: ValueError | OverflowError, text: str) -> YamlFault:
    """PyYAML accepts any code point in an escape, and an int of any digits."""
    match = _BEYOND.search(text)
    if match is None:
        return YamlFault(f"The file is not valid YAML: {error}", 0)
    problem = "An escape represents a character that does not exist"
    return YamlFault(problem, match.start(), "the highest is `\\U0010FFFF`")


def _syntax_fault(error: yaml.MarkedYAMLError, text: str) -> YamlFault:
    mark = error.problem_mark or error.context_mark
    index = int(mark.index) if mark is not None else 0
    problem = error.problem or error.context or "cannot be read"
    start = text.rfind("\n", 0, index) + 1
    line = text[start : text.find("\n", start) if "\n" in text[start:] else len(text)]
    hint = "check indentation, colons and quotes near this place"
    if "${" in line:
        hint = "inside {...} or [...], put quotes around a value that contains `${...}`"
    elif "\t" in line[: len(line) - len(line.lstrip())]:
        hint = "indent with spaces; YAML does not allow tabs"
    return YamlFault(f"The file is not valid YAML: {problem}", index, hint)


def _check_expansion(root: Node) -> None:
    """Refuse recursion, alias bombs and endless chains; each node is measured once."""
    sizes: dict[int, int] = {}
    heights: dict[int, int] = {}
    open_nodes: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, is_closing = stack.pop()
        key = id(node)
        children: Sequence[Node] = ()
        if isinstance(node, MappingNode):
            children = [child for pair in node.value for child in pair]
        elif isinstance(node, SequenceNode):
            children = node.value
        if is_closing:
            open_nodes.discard(key)
            below = [id(child) for child in children]
            length = len(node.value) if isinstance(node, ScalarNode) else 0
            sizes[key] = 1 + length + sum(sizes[child] for child in below)
            heights[key] = 1 + max((heights[child] for child in below), default=0)
            if sizes[key] > MAX_EXPANDED or heights[key] > MAX_DEPTH:
                too = "large" if sizes[key] > MAX_EXPANDED else "deep"
                problem = f"With aliases expanded, the file is too {too}"
                raise YamlFault(problem, index_of(node), "use fewer `*aliases`")
        elif key in open_nodes:
            problem = "An alias refers to a value that contains the alias"
            raise YamlFault(problem, index_of(node), "remove the `*alias`")
        elif key not in sizes:
            open_nodes.add(key)
            stack.append((node, True))
            stack.extend((child, False) for child in children)


# Variables inside scalars: `${VAR}`, `${VAR:-default}` and `$$` for `$`. Law: one pass, left to
# right, over a scalar that YAML has delimited. So a value can neither break the structure of the
# file nor refer to variables, and no message shows one. As in a shell, the default is used if the
# variable is unset or empty. A `$` before anything else is literal.

_REFERENCE = re.compile(r"\$\$|\$\{([^}]*)(\}?)")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


class Resolved(Struct, frozen=True):
    """Text with its variables resolved, and the origin of each piece."""

    text: str
    pieces: tuple[TextPiece, ...]
    faults: tuple[YamlFault, ...]


def has_references(text: str) -> bool:
    """Whether resolving could change the text."""
    return _REFERENCE.search(text) is not None


def resolve_variables(text: str, env: Mapping[str, str]) -> Resolved:
    """The text with every reference replaced; faults for values that are unavailable."""
    parts: list[str] = []
    pieces: list[TextPiece] = []
    faults: list[YamlFault] = []
    written = done = 0

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
        try:
            add(_value_of(match, env), match.start(), False)
        except YamlFault as fault:
            faults.append(fault)
    add(text[done:], done, True)
    return Resolved("".join(parts), tuple(pieces), tuple(faults))


def _value_of(match: re.Match[str], env: Mapping[str, str]) -> str:
    inside, closing = match.groups()
    if not closing:
        problem = "A variable that starts with `${` is never closed"
        raise YamlFault(problem, match.start(), "close it with `}`, or write `$$` for a `$` sign")
    parsed = _VARIABLE.fullmatch(inside)
    if parsed is None or (parsed[2] is not None and "${" in parsed[2]):
        raise YamlFault(
            "A `${...}` is not a variable impctl can resolve",
            match.start(),
            "write `${NAME}` or `${NAME:-default}` (a default cannot contain another variable), "
            "or `$${` for the characters `${`",
        )
    name, default = parsed.groups()
    value = env.get(name)
    if default is not None and not value:
        return str(default)
    if value is None:
        hint = f"set `{name}` in the environment, or give a default: `${{{name}:-value}}`"
        raise YamlFault(f"Variable `{name}` is not set", match.start(), hint)
    return value


# From a position in a query's SQL text to the position in the workload file. Law: the result is
# exact or the start of the scalar, never a wrong line. It is exact in literal blocks (`|`) and in
# scalars on one line, escapes and variables included (inside a value: where the variable is).

_SURROGATES = r"u[Dd][89ABab][0-9A-Fa-f]{2}\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}"
_ESCAPE = re.compile(rf"\\({_SURROGATES}|x[0-9A-Fa-f]{{2}}|u[0-9A-Fa-f]{{4}}|U[0-9A-Fa-f]{{8}}|.)")


def sql_location(spec: QuerySpec | ViewSpec, line: int, column: int) -> Location:
    """The position in the workload file of line and column (1-based) of `spec.sql`."""
    lines = spec.sql.split("\n")
    row = min(max(line, 1), len(lines)) - 1
    offset = sum(len(text) + 1 for text in lines[:row])
    return offset_location(spec, offset + min(max(column, 1) - 1, len(lines[row])))


def offset_location(spec: QuerySpec | ViewSpec, offset: int) -> Location:
    """The position in the workload file of a character of `spec.sql`."""
    origin = spec.sql_origin
    if not origin.runs or not origin.pieces:
        return origin.start
    piece = origin.pieces[bisect_right(origin.pieces, offset, key=lambda p: p.offset) - 1]
    source = piece.source + (offset - piece.offset if piece.is_literal else 0)
    run = origin.runs[bisect_right(origin.runs, source, key=lambda r: r.offset) - 1]
    return Location(origin.start.file, run.line, run.column + source - run.offset)


def origin_of(node: ScalarNode, resolved: Resolved, lines: Lines) -> SqlOrigin:
    """The mapping from the resolved text of a scalar to the file."""
    starts = [(offset, lines.location(index)) for offset, index in _starts(node, lines.text)]
    runs = tuple(SqlRun(offset, start.line, start.column) for offset, start in starts)
    return SqlOrigin(lines.location(index_of(node)), runs, resolved.pieces)


def _starts(node: ScalarNode, text: str) -> list[tuple[int, int]]:
    """Pairs (offset in the value, index in the file) where a run begins; none if not exact."""
    if node.style == "|":
        return _literal_starts(node, text)
    begin, end = index_of(node), int(node.end_mark.index)
    raw = text[begin:end]
    if "\n" in raw or "\r" in raw:
        return []
    match node.style:
        case None:
            return [(0, begin)] if raw == node.value else []
        case "'":
            return _quoted_starts(raw, re.compile("''"), begin)
        case '"':
            return _quoted_starts(raw, _ESCAPE, begin)
        case _:
            return []


def _quoted_starts(raw: str, escape: re.Pattern[str], begin: int) -> list[tuple[int, int]]:
    starts = [(0, begin + 1)]
    shrunk = 1
    for match in escape.finditer(raw, 1, len(raw) - 1):
        # An escape is one character of the value; the text after it starts another run.
        starts.append((match.start() - shrunk, begin + match.start()))
        shrunk += len(match.group()) - 1
        starts.append((match.end() - shrunk, begin + match.end()))
    return starts


def _literal_starts(node: ScalarNode, text: str) -> list[tuple[int, int]]:
    index = text.find("\n", index_of(node)) + 1
    if index == 0 or not node.value.strip():
        return []
    starts: list[tuple[int, int]] = []
    indent: int | None = None
    offset = 0
    for line in node.value.split("\n"):
        end = text.find("\n", index)
        raw = text[index : end if end >= 0 else len(text)].removesuffix("\r")
        if indent is None and line.strip():
            indent = len(raw) - len(line)
        skipped = indent or 0
        if line and raw[skipped:] != line:
            return []
        starts.append((offset, index + min(skipped, len(raw))))
        offset += len(line) + 1
        if end < 0:
            break
        index = end + 1
    return starts


# Nodes read as what the file should contain. Law: a method returns None exactly when it reported a
# problem or there is no node, so reading goes on and finds more. Messages name the position in the
# document and never a value, which may come from a variable.

_STANDARD = "tag:yaml.org,2002:"
_TEXT_TAG, _MAP_TAG, _SEQUENCE_TAG = (_STANDARD + kind for kind in ("str", "map", "seq"))
_HINT = "write a single value"
_HINTS = {
    "a mapping": "write `key: value` pairs",
    "a list": "write `[...]`, or lines that start with `- `",
}


_N = TypeVar("_N", bound=Node)


class MappingEntry(Struct, frozen=True):
    key: Node
    value: Node


class FileReading(Struct):
    """One pass over a file: positions, variables, and the problems so far."""

    lines: Lines
    env: Mapping[str, str]
    base: Path = Path()
    """Folder that paths are relative to."""
    names: TableNames = TableNames({})
    tables: tuple[str, ...] | None = None
    """All entries of `tables`, including invalid ones; None if unknown."""
    _problems: dict[tuple[int, str, str | None], Problem] = field(default_factory=dict)
    """By position, message and hint."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """In the order of the file."""
        by_index = sorted(self._problems.items(), key=lambda item: item[0][0])
        return tuple(problem for _, problem in by_index)

    def location(self, node: Node) -> Location:
        return self.lines.location(index_of(node))

    def report(self, node: Node, message: str, hint: str | None = None) -> None:
        """Report a problem at a node; the same one twice (through an alias) counts once."""
        self.report_index(index_of(node), message, hint)

    def report_index(self, index: int, message: str, hint: str | None) -> None:
        """Report a problem at a character of the file."""
        problem = Problem(message[:1].upper() + message[1:], self.lines.location(index), hint)
        self._problems.setdefault((index, message, hint), problem)

    def entries(self, node: Node | None, path: str) -> dict[str, MappingEntry] | None:
        """Keys of a mapping, merges (`<<`) followed; duplicate keys are a problem."""
        mapping = self._of_kind(MappingNode, node, path, "a mapping", (_MAP_TAG,))
        if mapping is None:
            return None
        entries: dict[str, MappingEntry] = {}
        merged: dict[str, MappingEntry] = {}
        for key, value in mapping.value:
            if not isinstance(key, ScalarNode) or key.tag not in (PLAIN_TAG, _TEXT_TAG):
                self.report(key, f"A key in {path} must be text", "write the key as one word")
            elif key.tag == PLAIN_TAG and key.value == "<<":
                for source in value.value if isinstance(value, SequenceNode) else [value]:
                    for name, entry in (self.entries(source, f"`<<` of {path}") or {}).items():
                        merged.setdefault(name, entry)
            elif key.value in entries:
                first = self.location(entries[key.value].key)
                hint = f"remove one; the first is on line {first.line}"
                self.report(key, f"Key {shown(key.value)} appears twice in {path}", hint)
            else:
                entries[key.value] = MappingEntry(key, value)
        return {**entries, **{k: v for k, v in merged.items() if k not in entries}}

    def record(
        self, node: Node | None, path: str, required: Sequence[str], optional: Sequence[str] = ()
    ) -> dict[str, Node] | None:
        """Values of a mapping with known keys; unknown and missing keys are problems."""
        entries = self.entries(node, path)
        if node is None or entries is None:
            return None
        allowed = (*required, *optional)
        for name, entry in entries.items():
            if name not in allowed:
                hint = suggestion(name, allowed, "allowed keys")
                self.report(entry.key, f"Key {shown(name)} is unknown in {path}", hint)
        for name in required:
            if name not in entries:
                self.report(node, f"Key `{name}` is missing in {path}", f"add `{name}:`")
        return {name: entry.value for name, entry in entries.items() if name in allowed}

    def columns(self, node: Node | None, path: str) -> dict[str, MappingEntry] | None:
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
        sequence = self._of_kind(SequenceNode, node, path, "a list", (_SEQUENCE_TAG,))
        return None if sequence is None else list(sequence.value)

    def cell(self, node: Node | None, path: str, expected: str) -> YamlScalar | None:
        """A scalar with its variables resolved and its type by YAML's rules."""
        resolved = self._resolve(node, path, expected)
        if node is None or resolved is None:
            return None
        if node.tag != PLAIN_TAG:
            return YamlScalar(resolved.text, resolved.text)
        try:
            return YamlScalar(plain_value(resolved.text), resolved.text)
        except ScalarFault as fault:
            self.report(node, f"{path}: {fault.message}", fault.hint)
            return None

    def text(self, node: Node | None, path: str) -> str | None:
        """Text that is not blank; a variable's value is text whatever it looks like."""
        resolved = self.resolved_text(node, path)
        return None if resolved is None else resolved.text

    def resolved_text(self, node: Node | None, path: str) -> Resolved | None:
        """Like `text`, with the origin of each piece."""
        resolved = self._resolve(node, path, "text")
        if node is None or resolved is None:
            return None
        if node.tag == PLAIN_TAG and not has_references(node.value):
            cell = self.cell(node, path, "text")
            if cell is None:
                return None
            value = cell.value
            if value is None or isinstance(value, int | float):
                hint = "write the text" if value is None else "put quotes around it"
                self.report(node, f"{path} must be text, not {kind_text(value)}", hint)
                return None
        if not resolved.text.strip():
            self.report(node, f"{path} is empty", "write some text")
            return None
        return resolved

    def whole_number(self, node: Node | None, path: str, most: int, usual: str) -> int | None:
        """A whole number from 1 to `most`; `usual`: the common ones."""
        cell = self.cell(node, path, "a whole number")
        if node is None or cell is None:
            return None
        if not isinstance(cell.value, int) or isinstance(cell.value, bool):
            message = f"{path} must be a whole number, not {kind_text(cell.value)}"
            self.report(node, message, "write a number without quotes, for example 16")
            return None
        if not 1 <= cell.value <= most:
            self.report(node, f"{path} must be from 1 to {most}", usual)
            return None
        return cell.value

    def choice(
        self, node: Node | None, path: str, options: Sequence[str], *, beside: str = ""
    ) -> str | None:
        """One of a few words; `beside` names what else is valid."""
        listed = ", ".join(f"`{option}`" for option in options)
        value = self.text(node, path)
        if node is None or value is None or value in options:
            return value
        hint = suggestion(value, options, None) or f"write one of these words{beside}"
        self.report(node, f"{path} must be one of {listed}", hint)
        return None

    def _resolve(self, node: Node | None, path: str, expected: str) -> Resolved | None:
        """The text of a scalar with its variables resolved."""
        scalar = self._of_kind(ScalarNode, node, path, expected, (PLAIN_TAG, _TEXT_TAG))
        if scalar is None:
            return None
        resolved = resolve_variables(scalar.value, self.env)
        # Offsets in the scalar match the file only on the scalar's own line, without escapes.
        on_one_line = scalar.start_mark.line == scalar.end_mark.line and scalar.style is None
        for fault in resolved.faults:
            shift = fault.index if on_one_line else 0
            self.report_index(index_of(scalar) + shift, fault.message, fault.hint)
        if resolved.faults:
            return None
        text = resolved.text
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            hint = "set the variable to UTF-8 text"
            self.report(scalar, "The value of a variable is not text", hint)
            return None
        return resolved

    def _of_kind(
        self, kind: type[_N], node: Node | None, path: str, expected: str, tags: Sequence[str]
    ) -> _N | None:
        """The node; a problem if it has another kind, or a tag of the file's author."""
        if isinstance(node, kind) and node.tag in tags:
            return node
        if isinstance(node, kind):
            tag = str(node.tag).removeprefix(_STANDARD).lstrip("!")
            self.report(node, f"Tag {shown('!' + tag)} is not allowed", "remove the tag")
        elif node is not None:
            self._wrong_kind(node, path, expected)
        return None

    def _wrong_kind(self, node: Node, path: str, expected: str) -> None:
        kinds: dict[type[Node], str] = {MappingNode: "a mapping", SequenceNode: "a list"}
        kind = kinds.get(type(node), "text")
        if isinstance(node, ScalarNode) and node.tag == PLAIN_TAG:
            try:
                kind = kind_text(plain_value(node.value))
            except ScalarFault:
                kind = "a single value"
        self.report(node, f"{path} must be {expected}, not {kind}", _HINTS.get(expected, _HINT))


def inside(path: str, name: str) -> str:
    """The path of a key inside `path`, for messages; of a whole file it is the key alone."""
    return f"{path[:-1]}.{shown(name)[1:]}" if path.endswith("`") else shown(name)


def shown(name: str) -> str:
    """A name for messages: in backticks, printable and of limited length."""
    printable = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in name[:81]
    )
    return f"`{printable if len(name) <= 80 else printable[:77] + '...'}`"


def written_at(node: Node | None, resolved: str) -> str:
    """A name as in the file: with its variables, whose values must not be shown."""
    return shown(node.value if isinstance(node, ScalarNode) else resolved)


def suggestion(name: str, known: Sequence[str], otherwise: str | None) -> str | None:
    """A did-you-mean, else the list of alternatives under the heading `otherwise`."""
    close = get_close_matches(name[:81].lower(), [option.lower() for option in known], n=1)
    for option in known:
        if close and option.lower() == close[0]:
            return f"did you mean `{option}`?"
    if otherwise is None or not known:
        return None
    listed = ", ".join(f"`{option}`" for option in known[:20])
    return f"{otherwise}: {listed}{', ...' if len(known) > 20 else ''}"

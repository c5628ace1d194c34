"""YAML text composed to nodes that remember their place.

Law: composing never builds Python objects from tags, never runs away (depth, size after aliases
and recursion are bounded), and every node has a line and column as an editor counts them.
Out of scope: what scalars mean (`workload.scalars`) and what the file must hold (`workload.load`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Never

import yaml
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from impctl.errors import Location

MAX_DEPTH = 40
"""Levels of nesting, aliases followed; the deepest place the workload file knows is level 7."""

MAX_EXPANDED = 4_000_000
"""Characters and nodes the file may grow to once aliases are followed."""

MAX_NODES = 20_000
"""Keys and values of a file as written; some seconds of reading, and far more than queries need."""

PLAIN_TAG = "impctl:plain"
"""Tag of a scalar without quotes or explicit tag; `workload.scalars` gives it a type."""

_LINE_BREAK = re.compile(r"\r\n|\n|\r")
_BEYOND = re.compile(r"\\U(?!000|0010)[0-9A-Fa-f]{8}")


class YamlFault(Exception):
    """The text is not YAML, or is YAML beyond the bounds; never leaves this room."""

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

    def at(self, index: int) -> Location:
        """The place of the character at `index`."""
        line = bisect_right(self._starts, index)
        return Location(self.file, line, index - self._starts[line - 1] + 1)


class _Bounded(Composer):
    """A composer that refuses to nest without end, and leaves plain scalars untyped."""

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
    """PyYAML's own parser, whose messages and places are those that faults tell."""


if yaml.__with_libyaml__:

    class _FastLoader(_Bounded, yaml.CSafeLoader):
        """The events of libyaml's parser, read twenty times as fast."""

        def __init__(self, text: str) -> None:
            _Bounded.__init__(self)
            yaml.CSafeLoader.__init__(self, text)


def compose(text: str) -> Node | None:
    """The root node of the one document in `text`, None when it is empty; `YamlFault` if bad."""
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
    _check_expansion(root)
    return root


def _root_of(text: str) -> Node | None:
    if yaml.__with_libyaml__ and "\ufeff" not in text:  # which libyaml does not count
        try:
            return _FastLoader(text).get_single_node()
        except yaml.YAMLError:
            pass  # read again for an error with a place, and for what only one of the two reads
    try:
        return _Loader(text).get_single_node()
    except (ValueError, OverflowError) as error:
        raise _value_fault(error, text) from None


def index_of(node: Node) -> int:
    """Index of the node's first character in the text."""
    return int(node.start_mark.index)


def children(node: Node) -> Sequence[Node]:
    """Nodes directly below this one, keys included."""
    if isinstance(node, MappingNode):
        return [part for pair in node.value for part in pair]
    if isinstance(node, SequenceNode):
        return list(node.value)
    return ()


def _joined(node: ScalarNode) -> str:
    """The scalar's text with surrogate pairs, as JSON escapes them, made one character."""
    try:
        return str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise YamlFault(
            "An escape represents half a character (a surrogate)",
            index_of(node),
            "write the character itself, or both halves",
        ) from None


def _value_fault(error: ValueError | OverflowError, text: str) -> YamlFault:
    """PyYAML makes a character of any number that an escape names, and an int of any digits."""
    match = _BEYOND.search(text)
    if match is None:
        return YamlFault(f"The file is not valid YAML: {error}", 0)
    return YamlFault(
        "An escape represents a character that does not exist",
        match.start(),
        "the highest is `\\U0010FFFF`",
    )


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
    """Refuse recursion, alias bombs and endless chains, by measures taken once per node."""
    sizes: dict[int, int] = {}
    heights: dict[int, int] = {}
    open_nodes: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, is_closing = stack.pop()
        key = id(node)
        if is_closing:
            open_nodes.discard(key)
            below = [id(child) for child in children(node)]
            own = len(node.value) if isinstance(node, ScalarNode) else 0
            sizes[key] = 1 + own + sum(sizes[child] for child in below)
            heights[key] = 1 + max((heights[child] for child in below), default=0)
            if sizes[key] > MAX_EXPANDED or heights[key] > MAX_DEPTH:
                too = "large" if sizes[key] > MAX_EXPANDED else "deep"
                raise YamlFault(
                    f"With aliases expanded, the file is too {too}",
                    index_of(node),
                    "use fewer `*aliases`",
                )
        elif key in open_nodes:
            raise YamlFault(
                "An alias refers to a value that contains the alias",
                index_of(node),
                "remove the `*alias`",
            )
        elif key not in sizes:
            open_nodes.add(key)
            stack.append((node, True))
            stack.extend((child, False) for child in children(node))

"""All text that a user may read, by sentence: documents, help, and strings in the code.

To see violations of the language rules, run `python -m tests.docs.user_text [PATH ...]`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from msgspec import Struct

from tests.support.sources import PACKAGE, ROOT, nodes

COMMANDS = PACKAGE / "cli" / "commands.py"
LONGEST = 30
"""Maximum words of a sentence."""
USUAL = 16
"""Maximum of the median length."""

WORDS = re.compile(
    r"\b(?:"
    r"tells?|told|telling|anew|surely|whence|foreseen|foresees?|likewise|hitherto|thereby"
    r"|(?:left|leav(?:e|es|ing)) (?:away|out)|leaves? (?:\w+ ){1,3}(?:away|out)"
    r"|tak(?:e|es|en|ing) up|took up|taken for granted"
    r"|stands? (?:at|for|there)|stood at|rests? on|resting on|stems? from"
    r"|com(?:e|es|ing) to(?= (?:a|an|the|\d))|came to(?= (?:a|an|the|\d))|came and went|come and go"
    r"|(?:kept|stored) answers?|answers? (?:is|are|was) kept|kept rows|keeps? (?:its|the|an) answer"
    r"|is dear|dearer|by hand of|by touch|of its own|in place of|some \d+"
    r"|has not got|mends?|mended|ever other|spoken of|speaks?|says so|says of|said of"
    r"|goes? on from|went on|go on with|at once(?= for)|gone on|be so kind"
    r"|fragments?|desk|lots? of which"
    r")\b",
    re.IGNORECASE,
)
"""Words and phrases with an unusual meaning; each has a standard term."""

_NO_PROSE = re.compile(r"\\[dwsb]|\(\?|\[\^|^\s*(?:SELECT|WITH|CREATE|INSERT|DESCRIBE|<)")
"""Patterns and text in another language."""


class Sentence(Struct, frozen=True):
    """A sentence and its position."""

    file: str
    line: int
    text: str

    @property
    def words(self) -> int:
        return len(re.findall(r"[^\s(){}|=/–-]*\w[^\s(){}|=/–-]*", self.text))


def user_text(paths: Sequence[Path] = ()) -> Iterator[Sentence]:
    """Every sentence of the documents and the code below these paths (default: everywhere)."""
    folders = [path.resolve() for path in paths] or [ROOT]
    for path in _documents():
        if any(path.is_relative_to(parent) for parent in folders):
            yield from _of_document(path)
    for path, line, text in _texts_of_code():
        if any(path.is_relative_to(parent) for parent in folders):
            yield from _of_text(path, line, text)


def _documents() -> list[Path]:
    pages = sorted((ROOT / "docs").glob("*.md"))
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *pages]


def _of_document(path: Path) -> Iterator[Sentence]:
    """Sentences of paragraphs, list items and cells of tables; not of code."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", lambda m: "\n" * m.group().count("\n"), text, flags=re.M | re.S)
    block: list[str] = []
    first = 1
    lines = [*text.split("\n"), ""]
    for number, line in enumerate(lines, start=1):
        is_code = line.startswith("    ") and not (block and not block[-1].startswith("    "))
        starts = re.match(r"\s*(?:[-*] |\d+\. |#|\||>)", line)
        if block and (not line.strip() or starts):
            yield from _sentences(path, first, " ".join(part.strip() for part in block))
            block = []
        if not line.strip() or (is_code and not starts):
            continue
        if line.lstrip().startswith("|"):
            for cell in line.strip().strip("|").split(" | "):
                yield from _sentences(path, number, cell)
            continue
        if not block:
            first = number
        block.append(line)


def _texts_of_code() -> Iterator[tuple[Path, int, str]]:
    """The strings in the package except docstrings, and the docstrings of commands (`--help`)."""
    docstrings = {id(node.value) for _, node in nodes(ast.Expr)}
    for path, node in nodes(ast.FunctionDef):
        if path == COMMANDS and not node.name.startswith("_"):
            docstrings.discard(id(getattr(node.body[0], "value", None)))
    inner: set[int] = set()
    for path, joined in nodes(ast.JoinedStr):
        inner.update(id(part) for part in ast.walk(joined) if isinstance(part, ast.Constant))
        parts = (p.value if isinstance(p, ast.Constant) else "N" for p in joined.values)
        yield path, joined.lineno, "".join(map(str, parts))
    skipped = docstrings | inner
    for path, constant in nodes(ast.Constant):
        if isinstance(constant.value, str) and id(constant) not in skipped:
            yield path, constant.lineno, constant.value


def _of_text(path: Path, line: int, text: str) -> Iterator[Sentence]:
    if _is_code(text):
        # Its comments are user text.
        comments = (one.partition("# ")[2] for one in text.split("\n"))
        text = "\n\n".join(filter(None, comments))
    if _is_prose(text):
        for paragraph in re.split(r"\n\s*\n", text):
            yield from _sentences(path, line, " ".join(paragraph.split()))


def _is_code(text: str) -> bool:
    """Whether it is several lines of YAML, properties or Python, or a list of names."""
    lines = [line for line in text.split("\n") if line.strip()]
    settings = [line for line in lines if re.match(r"\s*[\w.-]+ ?[:=]", line)]
    is_list = len(text.split()) > LONGEST and not re.search(r"[,;:]", text)
    return len(settings) >= 3 or is_list


def _is_prose(text: str) -> bool:
    """Whether it is several words, and not SQL, a pattern or a path."""
    if len(re.findall(r"\b[A-Za-z]{2,}\b", text)) < 2 or " " not in text.strip():
        return False
    return not _NO_PROSE.search(text)


def _sentences(path: Path, line: int, text: str) -> Iterator[Sentence]:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "`x`", text)
    for part in re.split(r"(?<=[.!?])[\"”)]?\s+(?=[A-Z`“\"(])|<br>", text):
        part = part.strip(" #*->|")
        if re.search(r"\w", part):
            yield Sentence(str(path.relative_to(ROOT)), line, part)


def problems(sentences: Sequence[Sentence]) -> Iterator[str]:
    """Describe violations of the rules, one per line."""
    for sentence in sentences:
        where = f"{sentence.file}:{sentence.line}"
        for match in WORDS.finditer(sentence.text):
            yield f"{where}: “{match.group()}” in: {sentence.text}"
        if sentence.words > LONGEST:
            yield f"{where}: {sentence.words} words: {sentence.text}"


def main(arguments: Sequence[str]) -> int:
    result = list(user_text([Path(one) for one in arguments]))
    violations = list(problems(result))
    sys.stdout.write("".join(f"{line}\n" for line in violations))
    lengths = [sentence.words for sentence in result if sentence.words > 3]
    middle = median(lengths) if lengths else 0
    sys.stdout.write(
        f"{len(result)} sentences, median {middle} words, {len(violations)} problems\n"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

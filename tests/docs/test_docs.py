"""Every command, option, variable, code and field is documented, correctly and in plain words."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median
from typing import get_args

import typer
from msgspec import Struct

from benchmarks.judged_queries import INTRODUCTION, PAGE, Row, page
from benchmarks.record_tables import RECORDS, drawn, marks, pages
from impctl import errors
from impctl.cli.application import COMMANDS, EXIT_CODES, build_app
from impctl.cli.output.outcome import to_json
from impctl.cli.reference import reference_text
from impctl.compile.jointree.shape import TreeNodeEntry
from impctl.service import results
from impctl.service.results import ChangesResult, QueryResult, Result, WithoutResult
from impctl.service.settings import ENVVARS
from tests.cli.examples import EXAMPLES
from tests.docs.user_text import COMMANDS as COMMANDS_FILE
from tests.docs.user_text import USUAL, Sentence, problems, user_text
from tests.support.sources import ROOT, nodes, texts
from tests.support.sources import texts as package_texts

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
VARIABLE = re.compile(r"(?<!_)IMPCTL_[A-Z_]+")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
ROW = re.compile(r"^\| `([a-z0-9_]+)` \|", re.MULTILINE)


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_reference_is_current() -> None:
    assert read("cli-reference.md") == reference_text(), "run `make docs`"


def test_every_command_and_option_is_documented() -> None:
    reference = read("cli-reference.md")
    parsed = typer.main.get_command(build_app()).commands  # type: ignore[attr-defined]
    for command in COMMANDS:
        page = reference.partition(f"\n## impctl {command}\n")[2].partition("\n## ")[0]
        assert f"Example: `impctl {command} " in page
        for param in parsed[command].params:
            assert param.help, (command, param.name)
            if param.param_type_name == "option":
                assert all(f"`{name}" in page for name in param.opts), (command, param.name)


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [c for c in COMMANDS if f"`{c}`" not in text] == []


def test_variables_are_exactly_those_in_the_table() -> None:
    table = read("configuration.md")
    for entry in ENVVARS:
        flag = "" if entry.flag is None else f"`{entry.flag}` "
        row = f"| `{entry.name}` | {entry.purpose} | {flag}| {entry.since} |"
        assert row in table, row
    named = {entry.name for entry in ENVVARS}
    for path in sources("impctl", "tests", "workloads"):
        text = path.read_text(encoding="utf-8")
        assert "IMPCTL_" not in text or set(VARIABLE.findall(text)) <= named, path


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".yaml", ".sh") and path != Path(__file__):
                yield path


def test_every_exit_code_is_explained() -> None:
    page = read("troubleshooting.md")
    for code, meaning in EXIT_CODES:
        assert f"\n| {code} | {meaning.replace('policy strict', 'policy `strict`')} |" in page


def error_codes() -> set[str]:
    """The defaults of the error classes, and every code passed by keyword in the package."""
    result = {kind.default_code for kind in vars(errors).values() if is_error(kind)}
    for _, keyword in nodes(ast.keyword):
        if keyword.arg in ("code", "reason_code"):
            result |= texts_in(keyword.value)
    for _, plain in nodes(ast.Assign):
        if any(isinstance(t, ast.Name) and t.id == "default_code" for t in plain.targets):
            result |= texts_in(plain.value)
    for _, typed in nodes(ast.AnnAssign):
        if isinstance(typed.target, ast.Name) and typed.target.id == "default_code" and typed.value:
            result |= texts_in(typed.value)
    return result


def is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, errors.ImpctlError)


def texts_in(node: ast.expr) -> set[str]:
    return {
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def test_every_error_code_is_in_troubleshooting() -> None:
    documented = ROW.findall(read("troubleshooting.md"))
    assert len(documented) == len(set(documented))
    assert error_codes() - set(documented) == set()


def test_error_codes_are_listed_by_exit_code() -> None:
    sections = {
        int(text.split(":")[0]): set(ROW.findall(text))
        for text in read("troubleshooting.md").split("\n## Exit code ")[1:]
    }
    kinds = {name: kind for name, kind in vars(errors).items() if is_error(kind)}
    used = {(kind.default_code, kind.exit_code) for kind in kinds.values()}
    for _, call in nodes(ast.Call):
        if isinstance(call.func, ast.Name):
            exit_code = getattr(kinds.get(call.func.id), "exit_code", None)
            codes = [texts_in(word.value) for word in call.keywords if word.arg == "code"]
            used |= {(code, exit_code) for result in codes for code in result if exit_code}
    assert len(used) > 90
    page = read("troubleshooting.md")
    misplaced = [
        (code, exit_code)
        for code, exit_code in sorted(used)
        if code not in sections[exit_code]
        and not re.search(rf"^\| `{code}` \|.*\({exit_code} in ", page, re.MULTILINE)
    ]
    assert misplaced == []


def test_every_documented_code_exists() -> None:
    """Remove the lines of codes that are no longer raised."""
    code = "\n".join(package_texts().values())
    documented = ROW.findall(read("troubleshooting.md"))
    assert [name for name in documented if f'"{name}"' not in code] == []


OF_PROGRAMS = {"ArrowAnswer", "Failure", "Outcome", "QueryFiles", "TableFiles"}
"""Classes that are not part of the JSON document."""
PARTS = [
    kind
    for name, kind in vars(results).items()
    if isinstance(kind, type)
    and issubclass(kind, Struct)
    and kind.__module__ == results.__name__
    and name not in OF_PROGRAMS
]
"""Results and their parts."""
ROWS: Mapping[type, str] = {
    QueryResult: "query",
    ChangesResult: "changes",
    WithoutResult: "without",
}
"""Results that are rows, with the names of their examples."""


def test_every_field_of_the_json_document_is_listed() -> None:
    page = read("json.md")
    for kind in {*get_args(Result), *PARTS, TreeNodeEntry}:
        names = list(kind.__struct_fields__)
        if kind in ROWS:
            # The document has rows instead of an Arrow table.
            names = list(to_json(EXAMPLES[ROWS[kind]]))  # type: ignore[arg-type]
        row = ", ".join(f"`{name}`" for name in names)
        assert f"| {row} |\n" in page, kind


def test_links_lead_to_pages_and_headings() -> None:
    anchors = cache(headings)
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for target in LINK.findall(text):
            if "://" not in target and not target.startswith("mailto:"):
                assert (path.parent / target).exists(), (path, target)
        for target, anchor in ANCHOR.findall(text):
            other = (path.parent / target).resolve() if target else path
            if "://" not in target and other.suffix == ".md":
                assert anchor in anchors(other), (path, target, anchor)


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as on GitHub."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    names = re.findall(r"^#+ (.*)$", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text), re.MULTILINE)
    anchors = set(re.findall(r'<a id="([^"]*)">', text))
    return anchors | {re.sub(r"[^\w -]", "", name).lower().replace(" ", "-") for name in names}


def test_make_targets_named_in_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for path in PAGES:
        for target in re.findall(r"`make ([a-z-]+)`", path.read_text(encoding="utf-8")):
            assert f"\n{target}:" in makefile, (path, target)


OF_THE_CODE = {"glossary.md", "architecture.md"}
"""Pages that use the terms of the code, as decisions do."""
PAGES_OF_WORDS = sorted(
    page
    for page in [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    if page.name not in OF_THE_CODE
)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
RANGE_ID = re.compile(r"\bfragments?\b(?!:|\s+INTEGER)", re.IGNORECASE)
"""Excludes the key of workload files and the column of the catalog."""


def test_pages_use_the_term_range() -> None:
    for path in PAGES_OF_WORDS:
        text = CODE.sub("", path.read_text(encoding="utf-8"))
        assert not [line for line in text.splitlines() if RANGE_ID.search(line)], path


def sentences(tree: ast.AST) -> Iterator[str]:
    """Texts of several words without docstrings, and without what is in backticks."""
    ignored = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in ignored
        ):
            text = CODE.sub("", node.value).strip()
            if " " in text:
                yield text


def test_messages_use_the_term_range() -> None:
    result = [
        (path.name, text)
        for path, source in texts().items()
        if RANGE_ID.search(source)
        for text in sentences(ast.parse(source))
        if RANGE_ID.search(text)
    ]
    assert result == []


def test_help_uses_the_term_range() -> None:
    """The docstrings of commands are shown by `--help`."""
    result = [
        path.name
        for path, node in nodes(ast.FunctionDef)
        if path == COMMANDS_FILE and RANGE_ID.search(ast.get_docstring(node) or "")
    ]
    assert result == []


def test_words_and_sentences_are_plain() -> None:
    sentences = list(user_text())
    assert len(sentences) > 5_000
    assert list(problems(sentences)) == []
    assert median(sentence.words for sentence in sentences if sentence.words > 3) <= USUAL


def test_the_rules_find_bad_words() -> None:
    """A pattern that never matches would be useless."""
    bad = (
        "The log tells when a file is left out",
        "the answer is kept anew",
        "it rests on a foreseen size",
        "a sketch of fragments came and went",
    )
    assert [len(list(problems([Sentence("x.md", 1, text)]))) for text in bad] == [2, 2, 2, 2]
    long = Sentence("x.md", 1, " ".join(["word"] * 31))
    assert list(problems([long])) == [f"x.md:1: 31 words: {long.text}"]


def test_tables_match_their_records() -> None:
    assert pages()
    for path in pages():
        page = path.read_text(encoding="utf-8")
        assert drawn(page) == page, path.name


def test_every_record_is_shown_and_valid() -> None:
    named = {record for path in pages() for record, _ in marks(path.read_text(encoding="utf-8"))}
    result = {
        file.name: json.loads(file.read_text(encoding="utf-8")) for file in RECORDS.glob("*.json")
    }
    assert named == set(result)
    for name, record in result.items():
        assert record["failures"] == [], name
        assert all(cell["covers"] in (True, None) for cell in record["cells"]), name
        assert all(cell["equal"] in (True, None) for cell in record["cells"]), name


_ROW = re.compile(r"^\| (\w+) \| (exact|touch|recapture|refused|not read) \| ([\d.]+) \| (.*) \|$")


def test_the_page_matches_its_rows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    tables: dict[str, list[Row]] = {}
    for line in text.removeprefix(INTRODUCTION).splitlines():
        if line.startswith("## "):
            rows = tables.setdefault(line[3:], [])
        match = _ROW.match(line)
        if match:
            rows.append(Row(match[1], match[2], match[4].replace("\\|", "|"), float(match[3])))
    assert {heading: len(rows) for heading, rows in tables.items()} == {
        "TPC-DS": 118,
        "ClickBench": 43,
    }
    assert page(tables) == text, "print it again, see the page's last paragraph"


def test_inexact_queries_have_a_reason() -> None:
    rows = filter(None, map(_ROW.match, PAGE.read_text(encoding="utf-8").splitlines()))
    assert all(row[4].strip() for row in rows if row[2] != "exact")

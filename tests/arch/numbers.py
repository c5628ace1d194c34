"""Print how large the code is and how much of it processes one batch.

    python -m tests.arch.numbers [--quick]

The rows are those that the redesign is measured by; `--quick` skips the two that need a traced
batch.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.arch.trace_batch import trace_fresh, trace_in_memory
from tests.support.sources import PACKAGE, ROOT, nodes

Row = tuple[str, str]


def lines_and_files(folder: Path) -> tuple[int, int]:
    """Count the lines of Python below `folder` and its files."""
    files = [path for path in folder.rglob("*.py") if ".venv" not in path.parts]
    return sum(path.read_text(encoding="utf-8").count("\n") for path in files), len(files)


def duplicate_classes() -> dict[str, int]:
    """Count the names that several classes of the package share."""
    counts = Counter(node.name for _, node in nodes(ast.ClassDef))
    return {name: count for name, count in sorted(counts.items()) if count > 1}


def uses_of(name: str) -> int:
    """Count the variables, parameters and attributes of this name in the package."""
    return (
        sum(node.id == name for _, node in nodes(ast.Name))
        + sum(node.arg == name for _, node in nodes(ast.arg))
        + sum(node.attr == name for _, node in nodes(ast.Attribute))
    )


def glossary_entries() -> int:
    """Count the rows of the tables in docs/glossary.md, without the header."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    return len(re.findall(r"^\| (?!term \|)[^|]*\w", text, flags=re.MULTILINE))


def static_rows() -> list[Row]:
    """Figures that need no run."""
    lines, files = lines_and_files(PACKAGE)
    test_lines, test_files = lines_and_files(ROOT / "tests")
    duplicates = duplicate_classes()
    return [
        ("lines in impctl/", f"{lines:,}"),
        ("files in impctl/", f"{files:,}"),
        ("lines in tests/", f"{test_lines:,}"),
        ("files in tests/", f"{test_files:,}"),
        ("class names used more than once", f"{len(duplicates):,}"),
        ("uses of `found` as a name", f"{uses_of('found'):,}"),
        ("uses of `desk` as a name", f"{uses_of('desk'):,}"),
        ("glossary entries", f"{glossary_entries():,}"),
        ("decision records", f"{len(list((ROOT / 'docs' / 'decisions').glob('0*.md'))):,}"),
    ]


def traced_rows() -> list[Row]:
    """Figures of one batch of one SUM, with its state in memory and in a new process."""
    reports = []
    for trace in (trace_in_memory, trace_fresh):
        with tempfile.TemporaryDirectory() as folder:
            reports.append(trace(Path(folder)))
    memory, fresh = reports
    return [
        ("modules loaded by `maintain` of one SUM", f"{fresh['modules'] + fresh['packages']:,}"),
        ("files on the path of one batch", f"{memory['files']:,} / {fresh['files']:,}"),
        ("value types on that path", f"{len(memory['types']):,} / {len(fresh['types']):,}"),
    ]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.arch.numbers")
    parser.add_argument("--quick", action="store_true", help="leave out the traced batch")
    options = parser.parse_args(arguments)
    rows = static_rows() + ([] if options.quick else traced_rows())
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value:>12}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])

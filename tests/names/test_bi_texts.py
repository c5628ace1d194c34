"""Forty texts as BI tools and dbt send them: read, judged, and answered through a sketch.

The workload file has the same questions with tables by their bare names, as a person writes them;
the tools' texts have whole and quoted names, so that only the tables' identity can match them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import impctl
from impctl.cli.application import build_app
from impctl.cli.boundary import run
from tests.names.bi_shop import BiText, bi_texts, write_shop
from tests.support.random_cases import quarter_then_rest

TEXTS = tuple(bi_texts())
TOOLS = ("dbt", "metabase", "powerbi", "superset", "tableau")


def command_line(command: str, file: Path, *arguments: str) -> dict[str, Any]:
    """The document of a command that went well."""
    shown = StringIO()
    with redirect_stdout(shown):
        code = run(build_app(), [command, str(file), "--json", *arguments])
    document: dict[str, Any] = json.loads(shown.getvalue())
    assert code == 0, document["error"]
    return document


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workload of all questions, captured."""
    folder = tmp_path_factory.mktemp("bi")
    file = write_shop(folder, {text.name: text.bare for text in TEXTS})
    command_line("capture", file)
    return file


def test_there_are_eight_texts_of_each_tool() -> None:
    assert [text.name.split("_")[0] for text in TEXTS] == [t for t in TOOLS for _ in range(8)]
    assert all(text.bare != text.sql for text in TEXTS)


@pytest.fixture(scope="module")
def opened(captured: Path) -> Iterator[impctl.OpenWorkload]:
    with impctl.open(captured) as opened:
        yield opened


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.name)
def test_the_text_finds_a_sketch_as_it_is(opened: impctl.OpenWorkload, text: BiText) -> None:
    rewrite = opened.rewrite(sql=text.sql)
    assert rewrite.reuse.query is not None, rewrite.reuse
    assert rewrite.sketches
    assert rewrite.files_kept <= opened.rewrite(text.name).files_kept


@pytest.mark.slow
def test_most_texts_read_less(opened: impctl.OpenWorkload) -> None:
    narrowed = {text.name for text in TEXTS if opened.rewrite(sql=text.sql).sql != text.sql}
    assert len(narrowed) >= 30, sorted({text.name for text in TEXTS} - narrowed)


@pytest.mark.spark
@pytest.mark.parametrize("text", quarter_then_rest(TEXTS), ids=lambda text: text.name)
def test_the_answer_through_the_sketch_is_the_answer(captured: Path, text: BiText) -> None:
    answers = [
        command_line("query", captured, "--sql", text.sql, "--sketch", use)["results"][0]
        for use in ("always", "never")
    ]
    assert answers[0]["columns"] == answers[1]["columns"]
    rows = [sorted(map(repr, answer["rows"])) for answer in answers]
    assert rows[0] == rows[1]
    assert rows[0] or text.name.endswith("relationships")

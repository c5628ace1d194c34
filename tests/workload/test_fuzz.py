"""Any damage to a workload file ends in one of two errors, and soon."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from impctl.errors import UsageError, WorkloadError
from impctl.workload.load import load_workload
from impctl.workload.models import Workload
from impctl.workload.yaml import YamlFault, compose, sql_location
from tests.support.random_cases import FEW

from .test_load import DESIGN

pytestmark = pytest.mark.timeout(60)

RICH = (
    DESIGN.replace("data/sales}", "${A:-data}/sales, storage_options: &o {k: v}}")
    .replace("{path: ${A:-data}", '{path: "${A:-data}"')
    .replace('"${A:-data}"/sales', '"${A:-data}/sales"')
)

PIECES = st.sampled_from(
    [
        *"{}[]:,&*!|>'\"%@`#-?~$\\\t\n\r\0\ufeff\u2028\x85é😀",
        "\n  ", "\n      ", "- ", ": ", "? ", "<<: *o", "&o ", "*o", "!!python/name:os.system ",
        "!!str ", "${A}", "${B:-1}", "${", "$$", "---\n", "...\n", "null", "true", "1e999",
        "2022-02-30", "0x1F", "\\U00110000", '"\\UFFFFFFFF"',
        "9" * 500, ".nan", "\\ud800", '"\\ud800"', "{" * 60, "[" * 60,
    ]
)  # fmt: skip


@st.composite
def damaged_texts(draw: st.DrawFn) -> str:
    """A sound file after up to five cuts, insertions, copies and moved lines."""
    text = RICH
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, max(len(text) - 1, 0)))
        end = min(len(text), start + draw(st.integers(0, 60)))
        action = draw(st.sampled_from(["cut", "insert", "copy", "shuffle"]))
        if action == "cut":
            text = text[:start] + text[end:]
        elif action == "insert":
            text = text[:start] + draw(PIECES) + text[start:]
        elif action == "copy":
            target = draw(st.integers(0, len(text)))
            text = text[:target] + text[start:end] + text[target:]
        else:
            lines = text.splitlines(keepends=True)
            if lines:
                line = lines.pop(draw(st.integers(0, len(lines) - 1)))
                lines.insert(draw(st.integers(0, len(lines))), line)
            text = "".join(lines)
    return text


def load_or_refuse(path: Path, data: bytes) -> Workload | None:
    """The workload, or None after checking that the refusal is one a user can act on."""
    path.write_bytes(data)
    workload: Workload | None = None
    refusal: UsageError | None = None
    try:
        workload = load_workload(path, {"A": "value"})
    except UsageError as error:
        refusal = error
    if isinstance(refusal, WorkloadError):
        assert refusal.problems
        lines = data.decode("utf-8-sig").count("\n") + data.count(b"\r") + 1
        for problem in refusal.problems:
            assert 1 <= problem.location.line <= lines
            assert problem.location.column >= 1
            assert problem.hint
            problem.message.encode()
    elif refusal is not None:
        assert refusal.hint
    return workload


def test_the_text_to_damage_is_sound(tmp_path: Path) -> None:
    assert load_or_refuse(tmp_path / "w.yaml", RICH.encode()) is not None


@pytest.mark.slow
@given(text=damaged_texts(), line=st.integers(-1, 5), column=st.integers(-1, 90))
@FEW
def test_a_damaged_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str, line: int, column: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    workload = load_or_refuse(path, text.encode("utf-8", "replace"))
    if workload is not None:
        for query in workload.queries.values():
            place = sql_location(query, line, column)
            assert place.line >= 1
            assert place.column >= 1


def shape(node: yaml.Node) -> object:
    """What of a composed node the rest of the room looks at; an empty scalar's place apart."""
    if isinstance(node, yaml.ScalarNode):
        place = (node.start_mark.index, node.end_mark.index, node.start_mark.line)
        return node.tag, node.value, node.style, place if node.value else None
    if isinstance(node, yaml.MappingNode):
        parts = [shape(part) for pair in node.value for part in pair]
    else:
        parts = [shape(part) for part in node.value]
    return node.tag, node.start_mark.index, parts


@pytest.mark.slow
@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")
@given(text=damaged_texts())
@example(RICH)
@example("a: |\r\n  x\r\n  é😀\r\nb: >-\n  c\n\n  d\n'e': \"f\\\n  g\"\n")
@FEW
def test_the_fast_parser_reads_what_the_other_reads(text: str) -> None:
    def read(is_fast: bool) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(yaml, "__with_libyaml__", is_fast)
            try:
                root = compose(text)
            except YamlFault as fault:
                # Syntax is what the two may differ in; bounds are not.
                return None if "is not valid YAML" in fault.message else fault.message
        return "empty" if root is None else shape(root)

    fast, plain = read(True), read(False)
    assert fast == plain or plain is None


@FEW
@given(st.binary(max_size=200))
def test_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    load_or_refuse(tmp_path_factory.getbasetemp() / "bytes.yaml", data)

"""Composing YAML: places as editors count them, and bounds on what aliases can do."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from impctl.workload.yaml import MAX_DEPTH, Lines, YamlFault, compose, index_of
from tests.support.random_cases import FEW


@pytest.fixture(params=["libyaml", "PyYAML"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds for both parsers."""
    if request.param == "PyYAML":
        monkeypatch.setattr(yaml, "__with_libyaml__", False)
    elif not yaml.__with_libyaml__:
        pytest.skip("PyYAML was built without libyaml")


@pytest.mark.parametrize("text", ["", " \n", "# only a comment\n", "---\n", "%YAML 1.2\n---\n"])
def test_no_document_or_an_empty_one(text: str) -> None:
    assert compose(text) is None


def test_lines_end_as_in_an_editor() -> None:
    text = "a\r\nb\rc\n\nd\u2028e"
    lines = Lines("f", text)
    places = {text[i]: (lines.at(i).line, lines.at(i).column) for i in range(len(text))}
    assert [places[c] for c in "abcde"] == [(1, 1), (2, 1), (3, 1), (5, 1), (5, 3)]


@FEW
@given(st.text(alphabet="ab\r\n", max_size=40))
def test_a_place_and_its_index_agree(text: str) -> None:
    lines = Lines("f", text)
    broken = text.replace("\r\n", "\n\n").replace("\r", "\n")
    for index in range(len(text)):
        place = lines.at(index)
        assert place.column >= 1
        if broken[index] != "\n":
            start = broken.rfind("\n", 0, index) + 1
            assert place.column == index - start + 1


def test_a_node_knows_its_index_behind_wide_characters() -> None:
    root = compose("ключ: {😀: here}\n")
    inner = root.value[0][1].value[0][1]
    assert "ключ: {😀: here}\n"[index_of(inner) :].startswith("here")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "not valid YAML"),
        ("a: b: c", "not valid YAML"),
        ("a: 'x", "not valid YAML"),
        ("- a\nb", "not valid YAML"),
        ("*a", "undefined alias"),
        ("a: 1\n---\nb: 2\n", "another document"),
        ("a: \x07", "U+0007"),
        ("a: @x", "not valid YAML"),
        ('a: "\\ud83d"', "half a character"),
        ('a: "\\U00110000"', "does not exist"),
        ('a: "\\UFFFFFFFF"', "does not exist"),
        (f"%YAML 1.{'9' * 5000}\n---\na: 1\n", "not valid YAML: Exceeds the limit"),
        ("&a [*a]", "refers to a value that contains"),
        ("a: &a {b: {c: *a}}", "refers to a value that contains"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "levels of nesting"),
        ("[" * 200_000, "levels of nesting"),
        ("- " * 200_000, "levels of nesting"),
    ],
)
def test_bad_yaml_is_one_fault_with_a_place(text: str, message: str) -> None:
    with pytest.raises(YamlFault) as caught:
        compose(text)
    assert message in caught.value.message
    assert 0 <= caught.value.index <= len(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a: {path: ${X}}", "put quotes around"),
        ("a:\n\t- b", "indent with spaces"),
        ("a: [1", "check indentation"),
    ],
)
def test_the_hint_fits_the_line(text: str, hint: str) -> None:
    with pytest.raises(YamlFault) as caught:
        compose(text)
    assert hint in caught.value.hint


@pytest.mark.timeout(60)
@pytest.mark.parametrize("width", [2, 9])
def test_an_alias_bomb_is_refused_at_once(width: int) -> None:
    levels = [f"a0: &a0 [{', '.join('x' * width)}]"]
    for level in range(1, 35):
        levels.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    with pytest.raises(YamlFault, match="With aliases expanded, the file is too"):
        compose("\n".join(levels))


@pytest.mark.slow
def test_a_long_chain_of_aliases_is_refused() -> None:
    chain = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: *a{n - 1}}}" for n in range(1, 2000))]
    with pytest.raises(YamlFault, match="too deep"):
        compose("\n".join(chain))


def test_surrogate_pairs_of_json_become_one_character() -> None:
    root = compose(r'"x\ud83d\ude00"')
    assert root.value == "x😀"


def test_plain_aliases_are_fine() -> None:
    root = compose("a: &x [1, 2]\nb: *x\nc: {d: *x}\n")
    assert root.value[0][1] is root.value[1][1]

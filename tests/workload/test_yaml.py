"""YAML with locations as in editors: scalars, variables, aliases, problems reported once."""

from __future__ import annotations

import contextlib
import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from impctl.workload.load import load_workload
from impctl.workload.scalars import ScalarFault, kind_text, plain_value, size_from
from impctl.workload.yaml import (
    MAX_DEPTH,
    Lines,
    YamlFault,
    compose,
    has_references,
    index_of,
    resolve_variables,
    sql_location,
    suggestion,
)
from tests.support.random_cases import CHARACTERS, FEW
from tests.workload.conftest import Load, Problems


@pytest.fixture(params=["libyaml", "PyYAML"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with both parsers."""
    if request.param == "PyYAML":
        monkeypatch.setattr(yaml, "__with_libyaml__", False)
    elif not yaml.__with_libyaml__:
        pytest.skip("PyYAML was built without libyaml")


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("text", ["", " \n", "# only a comment\n", "---\n", "%YAML 1.2\n---\n"])
def test_no_document_or_an_empty_one(text: str) -> None:
    assert compose(text) is None


@pytest.mark.usefixtures("parser")
def test_line_ends_match_those_of_editors() -> None:
    text = "a\r\nb\rc\n\nd\u2028e"
    lines = Lines("f", text)
    positions = {
        text[i]: (lines.location(i).line, lines.location(i).column) for i in range(len(text))
    }
    assert [positions[c] for c in "abcde"] == [(1, 1), (2, 1), (3, 1), (5, 1), (5, 3)]


@pytest.mark.usefixtures("parser")
@FEW
@given(st.text(alphabet="ab\r\n", max_size=40))
def test_locations_and_indexes_agree(text: str) -> None:
    lines = Lines("f", text)
    broken = text.replace("\r\n", "\n\n").replace("\r", "\n")
    for index in range(len(text)):
        location = lines.location(index)
        assert location.column >= 1
        if broken[index] != "\n":
            start = broken.rfind("\n", 0, index) + 1
            assert location.column == index - start + 1


@pytest.mark.usefixtures("parser")
def test_the_index_after_wide_characters() -> None:
    root = compose("ключ: {😀: here}\n")
    inner = root.value[0][1].value[0][1]
    assert "ключ: {😀: here}\n"[index_of(inner) :].startswith("here")


BAD_YAML = {
    "not valid YAML": ["a: [1", "a: b: c", "a: 'x", "- a\nb", "a: @x"],
    "not valid YAML: Exceeds the limit": [f"%YAML 1.{'9' * 5000}\n---\na: 1\n"],
    "undefined alias": ["*a"],
    "another document": ["a: 1\n---\nb: 2\n"],
    "U+0007": ["a: \x07"],
    "half a character": ['a: "\\ud83d"'],
    "does not exist": ['a: "\\U00110000"', 'a: "\\UFFFFFFFF"'],
    "refers to a value that contains": ["&a [*a]", "a: &a {b: {c: *a}}"],
    "levels of nesting": [
        *("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "[" * 200_000, "- " * 200_000)
    ],
}


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("message", BAD_YAML)
def test_invalid_yaml_is_one_located_fault(message: str) -> None:
    for text in BAD_YAML[message]:
        with pytest.raises(YamlFault) as caught:
            compose(text)
        assert message in caught.value.message
        assert 0 <= caught.value.index <= len(text)


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a: {path: ${X}}", "put quotes around"),
        ("a:\n\t- b", "indent with spaces"),
        ("a: [1", "check indentation"),
    ],
)
def test_the_hint_depends_on_the_line(text: str, hint: str) -> None:
    with pytest.raises(YamlFault) as caught:
        compose(text)
    assert hint in caught.value.hint


@pytest.mark.usefixtures("parser")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("width", [2, 9])
def test_an_alias_bomb_is_refused_at_once(width: int) -> None:
    levels = [f"a0: &a0 [{', '.join('x' * width)}]"]
    for level in range(1, 35):
        levels.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    with pytest.raises(YamlFault, match="With aliases expanded, the file is too"):
        compose("\n".join(levels))


@pytest.mark.usefixtures("parser")
@pytest.mark.slow
def test_a_long_chain_of_aliases_is_refused() -> None:
    chain = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: *a{n - 1}}}" for n in range(1, 2000))]
    with pytest.raises(YamlFault, match="too deep"):
        compose("\n".join(chain))


@pytest.mark.usefixtures("parser")
def test_surrogate_pairs_of_json_become_one_character() -> None:
    root = compose(r'"x\ud83d\ude00"')
    assert root.value == "x😀"


@pytest.mark.usefixtures("parser")
def test_aliases_are_accepted() -> None:
    root = compose("a: &x [1, 2]\nb: *x\nc: {d: *x}\n")
    assert root.value[0][1] is root.value[1][1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-7", -7),
        ("+7", 7),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("-1e3", -1000.0),
        ("1.5E-2", 0.015),
        ("0.1", 0.1),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("2022-02-28", date(2022, 2, 28)),
        ("2022-02-28 01:02:03", datetime(2022, 2, 28, 1, 2, 3)),
        ("2022-02-28T01:02:03.25", datetime(2022, 2, 28, 1, 2, 3, 250000)),
        ("2022-02-28t01:02:03Z", datetime(2022, 2, 28, 1, 2, 3, tzinfo=UTC)),
        (
            "2022-02-28 01:02:03 -05:30",
            datetime(2022, 2, 28, 1, 2, 3, tzinfo=timezone(-timedelta(hours=5, minutes=30))),
        ),
    ],
)
def test_unambiguous_scalars_are_typed(text: str, value: object) -> None:
    assert plain_value(text) == value
    assert type(plain_value(text)) is type(value)


AMBIGUOUS = (
    "no NO yes on off y n 007 -01 00.5 1:30 190:20:30 1_000 0x1F 0b1 0o7 + - . 1e .e1 e1 1.2.3 "
    "2022-1-1 2022-02-28T1:02:03 nan inf Infinity true1 None ٣ 1٣"
)


@pytest.mark.parametrize("text", AMBIGUOUS.split())
def test_ambiguous_scalars_are_text(text: str) -> None:
    assert plain_value(text) == text


def test_nan_is_a_number() -> None:
    value = plain_value(".nan")
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("message", "texts"),
    [
        ("digits", ["1e400", "0.1000000000000000001", "12345678901234567.5", "1e-400"]),
        ("digits", ["9" * 401, "1." + "0" * 500]),
        ("calendar", ["2022-02-30", "2022-13-01", "0000-01-01"]),
        ("calendar", ["2022-02-28 25:00:00", "2022-02-28 01:02:61"]),
    ],
)
def test_inexact_and_nonexistent_values_are_refused(message: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ScalarFault, match=message):
            plain_value(text)


@FEW
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_round_trip(value: float) -> None:
    assert plain_value(repr(value)) == value


@FEW
@given(st.text(CHARACTERS))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ScalarFault):
        assert kind_text(plain_value(text)) != "a value"


def test_names_of_kinds() -> None:
    values = [None, True, 1, 1.0, "x", datetime(2022, 1, 1), date(2022, 1, 1), [1]]
    assert ", ".join(map(kind_text, values)) == (
        "nothing, true or false, a whole number, a number, text, a timestamp, a date, a value"
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1.5GB", 1_500_000_000),
        (" 2 GiB ", 2 << 30),
        ("0.1kb", 100),
        ("9007199254740993", 9_007_199_254_740_993),
    ],
)
def test_sizes_in_bytes(text: str, size: int) -> None:
    assert size_from(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", "1.5.2GB", "1XB", "1e3", "nan", "9" * 400, "9" * 5_000]
)
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is only the text
        size_from(text)


ENV = {"A": "1", "EMPTY": "", "TRICK": "${A} $$ x: [y]", "_x9": "low"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain", "plain"),
        ("${A}", "1"),
        ("a${A}b${A}", "a1b1"),
        ("${_x9}", "low"),
        ("${EMPTY}", ""),
        ("${EMPTY:-d}", "d"),
        ("${NONE:-d}", "d"),
        ("${NONE:-}", ""),
        ("${A:-d}", "1"),
        ("${NONE:-a:-b $ c}", "a:-b $ c"),
        ("$$", "$"),
        ("$${A}", "${A}"),
        ("$$$${A}", "$${A}"),
        ("$$${A}", "$1"),
        ("$A $ {A} $1 5$", "$A $ {A} $1 5$"),
        ("${TRICK}", "${A} $$ x: [y]"),
        ("${NONE:-two\nlines}", "two\nlines"),
    ],
)
def test_references_are_replaced_once(text: str, expected: str) -> None:
    resolved = resolve_variables(text, ENV)
    assert resolved.text == expected
    assert resolved.faults == ()


@pytest.mark.parametrize(
    ("text", "offset", "message"),
    [
        ("ab${NONE}", 2, "Variable `NONE` is not set"),
        ("${", 0, "never closed"),
        ("x ${A", 2, "never closed"),
        ("${}", 0, "not a variable"),
        ("${A-b}", 0, "not a variable"),
        ("${A:?b}", 0, "not a variable"),
        ("${ A }", 0, "not a variable"),
        ("${1A}", 0, "not a variable"),
        ("${Ä}", 0, "not a variable"),
        ("${NONE:-${A}}", 0, "not a variable"),
    ],
)
def test_unresolved_references_are_located(text: str, offset: int, message: str) -> None:
    (fault,) = resolve_variables(text, ENV).faults
    assert fault.index == offset
    assert message in fault.message
    assert fault.hint


def test_all_faults_are_found_and_values_are_hidden() -> None:
    faults = resolve_variables("${A}${X}${Y}", {"A": "s3cret"}).faults
    assert [fault.index for fault in faults] == [4, 8]
    assert "s3cret" not in repr([(fault.message, fault.hint) for fault in faults])


@FEW
@given(st.text(alphabet="$${}A:-bX \n", max_size=30))
def test_pieces_give_the_source_of_each_character(text: str) -> None:
    resolved = resolve_variables(text, {"A": "value"})
    if resolved.faults:
        return
    ends = [piece.offset for piece in resolved.pieces[1:]] + [len(resolved.text)]
    for piece, end in zip(resolved.pieces, ends, strict=False):
        part = resolved.text[piece.offset : end]
        assert part
        if piece.is_literal:
            assert text[piece.source : piece.source + len(part)] == part
        else:
            assert text[piece.source] == "$"
    if not has_references(text):
        assert resolved.text == text


@FEW
@given(st.text(CHARACTERS, max_size=40))
def test_escaped_text_round_trips(text: str) -> None:
    assert resolve_variables(text.replace("$", "$$"), {}).text == text


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("tabels", ["tables", "queries"], "did you mean `tables`?"),
        ("TABLES", ["tables", "queries"], "did you mean `tables`?"),
        ("xyz", ["tables", "queries"], "keys: `tables`, `queries`"),
        ("xyz", [], None),
        ("x" * 10_000, ["tables"], "keys: `tables`"),
        ("?", [f"k{n}" for n in range(30)], "keys: " + ", ".join(f"`k{n}`" for n in range(20))),
    ],
)
def test_did_you_mean(name: str, known: list[str], hint: str | None) -> None:
    result = suggestion(name, known, "keys")
    if len(known) > 20:
        assert result == f"{hint}, ..."
    else:
        assert result == hint


HEAD = "version: 1\ntables: {t: {path: p}}\nqueries:\n  q:\n"
SQL_LINES = st.lists(
    st.text(alphabet="SELECT abcä😀'\"\\,#:|", max_size=12).map(str.rstrip), min_size=1, max_size=5
)


def location_of(load: Load, sql: str, line: int, column: int, **env: str) -> tuple[int, int]:
    result = sql_location(load(HEAD + sql, env).queries["q"], line, column)
    assert result.file.endswith("w.yaml")
    return result.line, result.column


def check_characters(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="")
    spec = load_workload(path, {}).queries["q"]
    file_lines = text.split("\n")
    for row, sql_line in enumerate(spec.sql.split("\n"), start=1):
        for column, character in enumerate(sql_line, start=1):
            result = sql_location(spec, row, column)
            assert file_lines[result.line - 1][result.column - 1] == character


@FEW
@given(lines=SQL_LINES, indent=st.integers(1, 4), header=st.sampled_from(["|", "|-", "| # note"]))
def test_characters_of_a_literal_block(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], indent: int, header: str
) -> None:
    body = "".join(f"    {' ' * indent}{line}\n" if line else "\n" for line in ["x", *lines])
    path = tmp_path_factory.getbasetemp() / "literal.yaml"
    check_characters(path, f"{HEAD}    sql: {header}\n{body}    policy: auto\n")


@FEW
@given(st.text(alphabet="SELECT abcä😀'\"\\,#:|\t", min_size=1, max_size=20))
def test_characters_of_a_double_quoted_scalar(
    tmp_path_factory: pytest.TempPathFactory, sql: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "double.yaml"
    path.write_text(f"{HEAD}    sql: {json.dumps('x' + sql)}\n", encoding="utf-8")
    spec = load_workload(path, {}).queries["q"]
    assert spec.sql == "x" + sql
    line = path.read_text(encoding="utf-8").split("\n")[4]
    assert [line[sql_location(spec, 1, c + 1).column - 1] for c in range(len(spec.sql))] == [
        "\\" if json.dumps(c) != f'"{c}"' else c for c in spec.sql
    ]


@FEW
@given(st.text(alphabet="SELECT ab'\"\\,#:|", min_size=1, max_size=20))
def test_characters_of_a_single_quoted_scalar(
    tmp_path_factory: pytest.TempPathFactory, sql: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "single.yaml"
    quoted = sql.replace("'", "''")
    check_characters(path, f"{HEAD}    sql: 'x{quoted}'\n")


def test_locations_in_flow_style(load: Load) -> None:
    text = "version: 1\ntables: {t: {path: p}}\nqueries: {q: {sql: SELECT a}}\n"
    result = sql_location(load(text).queries["q"], 1, 8)
    assert (result.line, result.column) == (3, 27)


def test_a_literal_block_with_windows_line_ends(load: Load) -> None:
    text = (HEAD + "    sql: |\n      SELECT a\n      FROM t\n").replace("\n", "\r\n")
    result = sql_location(load(text).queries["q"], 2, 6)
    assert (result.line, result.column) == (7, 12)


@pytest.mark.parametrize(
    ("sql", "line", "column", "expected"),
    [
        ("SELECT 1", 1, 8, (5, 17)),
        ("|2\n        SELECT a\n      FROM t", 1, 3, (6, 9)),
        ("|2\n        SELECT a\n      FROM t", 2, 1, (7, 7)),
        # Folded text is located at the start of the scalar.
        (">\n      SELECT a\n      FROM t", 1, 12, (5, 10)),
        ("SELECT a\n      FROM t", 1, 12, (5, 10)),
        # A variable with a line break shifts later lines.
        ("|\n      SELECT ${C}\n      FROM t", 3, 1, (7, 7)),
        ("|\n      SELECT ${C}\n      FROM t", 2, 1, (6, 14)),
        # A location outside the text is moved inside.
        ("SELECT 1", 0, 0, (5, 10)),
        ("SELECT 1", 9, 99, (5, 18)),
    ],
)
def test_locations_in_sql(
    load: Load, sql: str, line: int, column: int, expected: tuple[int, int]
) -> None:
    assert location_of(load, f"    sql: {sql}\n", line, column, C="a,\nb") == expected


def test_a_problem_in_an_alias_is_reported_once(problems: Problems) -> None:
    text = "version: 1\ntables: {t: &t {path: '${X}'}, u: *t}\nqueries: {q: {sql: SELECT 1}}\n"
    (result,) = problems(text)
    assert result.startswith("2:23 Variable `X` is not set")


def test_locations_inside_and_after_a_variable(load: Load) -> None:
    sql = '    sql: "SELECT ${COLUMN} FROM t WHERE $$x"\n'
    column_of = (HEAD + sql).split("\n")[4].index
    assert location_of(load, sql, 1, 8, COLUMN="long_name") == (5, column_of("${") + 1)
    assert location_of(load, sql, 1, 12, COLUMN="long_name") == (5, column_of("${") + 1)
    assert location_of(load, sql, 1, 18, COLUMN="long_name") == (5, column_of("FROM") + 1)
    assert location_of(load, sql, 1, 32, COLUMN="long_name") == (5, column_of("x") + 1)

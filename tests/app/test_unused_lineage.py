"""`lineage: answer` that has no use is told, with its place; where it has one nothing is.

Law: where it is said to change nothing the sketches are those of `lineage: all`; where it is said
to leave a table without a sketch, other tables have theirs, and this one has some with that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli

REACH = (
    "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 0 UNION "
    "SELECT l.dst FROM r JOIN links l ON r.n = l.src) "
)
KEYED = (
    "WITH RECURSIVE r(t, n) AS (SELECT t, dst FROM links WHERE src = 0 UNION SELECT r.t, l.dst "
    "FROM r JOIN links l ON r.t = l.t AND r.n = l.src) "
)
BAG = (
    "WITH RECURSIVE r(n, k) AS (SELECT dst, 1 FROM links WHERE src = 0 UNION ALL "
    "SELECT l.dst, k + 1 FROM r JOIN links l ON r.n = l.src WHERE k < 5) "
)
USED = {
    "narrow": (REACH + "SELECT n FROM r WHERE n < 3", "{links: src}"),
    "outer": (
        REACH[:-2] + " LEFT JOIN nodes x ON x.n = l.dst) SELECT n FROM r WHERE n < 3",
        "{links: src}",
    ),
}
"""Of these sketches are smaller; the optional side of an outer join has none in any case."""
LOST = {
    "apart": (REACH + "SELECT n FROM nodes WHERE n NOT IN (SELECT n FROM r)", "{nodes: n}"),
    "missing": (
        REACH + "SELECT n FROM nodes WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.n = nodes.n)",
        "{nodes: n}",
    ),
}
"""Of these it leaves `links` without a sketch."""
UNUSED = {
    "flat": ("SELECT n FROM nodes GROUP BY n HAVING COUNT(*) > 1", "{nodes: n}", "has no WITH REC"),
    "walks": (BAG + "SELECT n FROM r WHERE n < 3", "{links: src}", "UNION ALL counts all"),
    "tenants": (
        KEYED + "SELECT t FROM r GROUP BY t HAVING COUNT(*) > 1",
        "{links: t}",
        "the recursion is keyed",
    ),
    "switches": (
        "WITH RECURSIVE r(b) AS (SELECT b FROM flags WHERE a UNION SELECT f.b FROM r JOIN flags f "
        "ON r.b = f.a) SELECT n FROM nodes WHERE n > 3 AND EXISTS (SELECT 1 FROM r WHERE r.b)",
        "{nodes: n}",
        "WITH RECURSIVE reads no table that has a sketch",
    ),
}
"""Of these it changes nothing, and why; flags are of no type that has ranges."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A path from 0 to 5, one back from 5 to 4, and nodes that it misses."""
    links = {"src": [0, 1, 2, 3, 4, 5], "dst": [1, 2, 3, 4, 5, 4], "t": [1, 1, 1, 2, 2, 3]}
    create_table(str(tmp_path / "links"), pa.table(links))
    create_table(str(tmp_path / "flags"), pa.table({"a": [True, False], "b": [False, True]}))
    create_table(str(tmp_path / "nodes"), pa.table({"n": [0, 3, 5, 7, 7]}))
    return tmp_path


def over(
    folder: Path, capsys: pytest.CaptureFixture[str], lineage: str, *, default: bool = False
) -> Cli:
    """The command line over all queries, with this lineage."""
    said = f", lineage: {lineage}"
    lines = [
        f'  {name}: {{sql: "{sql}", sketch: {sketch}{"" if default else said}}}'
        for name, (sql, sketch, *_) in {**USED, **LOST, **UNUSED}.items()
    ]
    text = [
        "version: 1",
        f"defaults: {{lineage: {lineage}}}" if default else "# no defaults",
        "tables: {links: {path: links}, nodes: {path: nodes}, flags: {path: flags}}",
        "partitions:",
        "  links: {src: {boundaries: [1, 2, 3, 4, 5]}, t: {boundaries: [2, 3]}}",
        "  nodes: {n: {boundaries: [1, 2, 3, 4, 5, 6]}}",
        "queries:",
        *lines,
        f"store: st_{lineage}",
    ]
    file = folder / f"{lineage}.yaml"
    file.write_text("\n".join(text) + "\n")
    return Cli(capsys, file)


def told(document: dict[str, Any]) -> dict[str, str]:
    """The warnings of lineage, by query."""
    result = [text for text in document["warnings"] if text.endswith("[lineage_unused]")]
    return {text.split("query `")[1].split("`")[0]: text for text in result}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "explain", "capture"])
def test_what_changes_nothing_is_told_with_its_place_and_reason(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    cli = over(folder, capsys, "answer")
    result = told(cli.good(command).document)
    assert result.keys() == {**LOST, **UNUSED}.keys()
    lines = cli.workload.read_text().splitlines()
    for name, text in result.items():
        line, column = map(int, text.split(": ")[0].split(":")[-2:])
        assert lines[line - 1].startswith(f"  {name}:")
        assert lines[line - 1][column - 1 :].startswith("answer}")
        if name in UNUSED:
            assert "has no effect: " in text
            assert UNUSED[name][2] in text
        else:
            assert "leaves `links` without a sketch: NOT EXISTS or NOT IN keeps rows" in text
            assert "with `lineage: all`, a sketch on `links.src` is safe" in text


def test_by_default_only_what_is_lost_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not told(over(folder, capsys, "all").good("check").document)
    assert told(over(folder, capsys, "answer", default=True).good("check").document).keys() == (
        LOST.keys()
    )


def test_sketches_are_those_of_all_lineage_where_it_is_told_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    match = {}
    for lineage in ("answer", "all"):
        captured = over(folder, capsys, lineage).good("capture").results
        match[lineage] = {
            result["query"]: [(s["table"], set(s["fragments"])) for s in result["sketches"]]
            for result in captured
        }
    some, every = match["answer"], match["all"]
    for name in UNUSED:
        assert some[name] == every[name], name
    for name in LOST:
        assert [table for table, _ in some[name]] == ["nodes"]
        assert some[name] == [one for one in every[name] if one[0] == "nodes"]
        assert "links" in {table for table, _ in every[name]}
    for (_, less), (_, whole) in zip(some["narrow"], every["narrow"], strict=True):
        assert less <= whole
    assert some["narrow"] != every["narrow"]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LOST))
def test_beside_a_recursion_that_is_kept_whole_another_table_is_read_in_part(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """0 and 7 are not reached; 3 and 5, which the sketch leaves out, are."""
    cli = over(folder, capsys, "answer")
    captured = cli.one("capture", "--query", name)
    assert [sketch["fragments"] for sketch in captured["sketches"]] == [[0, 6]]
    ran = cli.one("query", "--query", name, "--sketch", "always", "--by", "engine")
    assert sorted(ran["rows"]) == [[0], [7], [7]]


def test_of_a_table_that_is_sketched_in_part_the_place_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base alone is keyed on tenants: the answer keeps those of few rows."""
    cli = over(folder, capsys, "answer")
    text = cli.workload.read_text()
    few = text.replace('COUNT(*) > 1", sketch: {links: t}', 'COUNT(*) < 3", sketch: {links: t}')
    cli.workload.write_text(few)
    result = told(cli.good("check", "--query", "tenants").document)
    assert "leaves `links` (2nd) without a sketch: HAVING compares" in result["tenants"]

"""Which versions `--at` asks for: of one table, of several, and what is said wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake

from tests.outside.conftest import FEED
from tests.outside.place import Place, make_place
from tests.outside.rows import ROWS, more
from tests.outside.test_older_versions import expect_none_there
from tests.support.made_once import MadeOnce
from tests.support.run_cli import Cli

# Several tables


@pytest.fixture
def two(made_once: MadeOnce, capsys: pytest.CaptureFixture[str]) -> Place:
    """`t` joined with `u`, which moves on once more; sketches for each, in the order they came."""
    sql = "SELECT t.g, SUM(x) AS s FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING SUM(x) > 100"

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        write_deltalake(str(folder / "u"), ROWS.select(["g"]), configuration=FEED)
        place = make_place(folder, capsys, sql=sql, more="maintain: eager")
        text = place.cli.workload.read_text()
        text = text.replace("  t: {path: t}", "  t: {path: t}\n  u: {path: u}")
        place.cli.workload.write_text(text)
        place.cli.good("capture")
        place.append(5, x=9)
        write_deltalake(str(folder / "u"), more(7).select(["g"]), mode="append")
        place.cli.good("maintain")

    folder = made_once.folder("two", make)
    return Place(folder, sql, Cli(capsys, folder / "w.yaml"))


def test_each_table_has_its_version(two: Place) -> None:
    for t, u in ((0, 0), (1, 0), (1, 1)):
        (result,) = two.cli.good("rewrite", "--at", f"t={t}", "--at", f"u={u}").results
        assert result["versions"] == {"t": t, "u": u}
        assert result["action"] == "kept"


def test_versions_that_were_never_together(two: Place) -> None:
    ran = two.cli("rewrite", "--at", "t=0", "--at", "u=1")
    expect_none_there(ran, "no_sketch_at", "t=1, u=1; t=1, u=0; t=0, u=0")
    assert "version 0 of table `t` and version 1 of table `u`" in ran.error["message"]


@pytest.mark.parametrize(
    "arguments", [["--at", "1"], ["--at", "t=1"], ["--at", "t=1", "--at", "1"]]
)
def test_every_table_is_named(two: Place, arguments: list[str]) -> None:
    ran = two.cli("rewrite", *arguments)
    assert (ran.code, ran.error["code"]) == (2, "at_syntax"), ran.document
    assert "--at t=VERSION --at u=VERSION" in ran.error["hint"]


# What is said wrongly


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--at", "x"], "at_syntax"),
        (["--at", "-1"], "at_syntax"),
        (["--at", "t="], "at_syntax"),
        (["--at", ""], "at_syntax"),
        (["--at", "1", "--at", "2"], "at_syntax"),
        (["--at", "t=1", "--at", "t=1"], "at_syntax"),
        (["--at", "s=1"], "at_table_unknown"),
        (["--at", "1", "--sql", "SELECT g FROM t"], "at_and_constants"),
        (["--at", "1", "--param", "a=1"], "at_and_constants"),
    ],
)
def test_wrong_wishes(place: Place, arguments: list[str], code: str) -> None:
    ran = place.cli("rewrite", *arguments)
    assert (ran.code, ran.error["code"]) == (2, code), ran.document
    assert ran.error["hint"]

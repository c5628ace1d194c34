"""`impctl init` on tables that are there, and its demo, run by the commands it prints."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.tables.write.maintenance import create_table
from impctl.workload.schema import workload_json_schema
from tests.tables import handmade

Init = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def impctl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Init:
    """Any command in an empty folder: its exit code and document."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = run(build_app(), [*words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


DAYS = pa.array([date(2024, 1, 1 + at % 28) for at in range(5000)], pa.date32())
VISITS = pa.table(
    {
        "visit": pa.array(range(5000), pa.int64()),
        "day": DAYS,
        "page": pa.array([f"/p{at % 90}" for at in range(5000)]),
        "is_new": pa.array([at % 2 == 0 for at in range(5000)]),
        "flag": pa.array([at % 2 for at in range(5000)], pa.int32()),
        "tags": pa.array([["a"]] * 5000),
    }
)


def test_what_is_written_passes_check(impctl: Init, tmp_path: Path) -> None:
    create_table(str(tmp_path / "visits"), VISITS)
    code, document = impctl("init", "visits")
    (result,) = document["results"]
    assert (code, result["file"], result["tables"]) == (0, "impctl.yaml", ["visits"])
    text = (tmp_path / "impctl.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=impctl.schema.json\n")
    assert "visits: {path: visits}" in text
    assert "visit: {ranges: 100}  # bigint, at most 5,000 values" in text
    assert "day: {ranges: 28}  # date, at most 28 values" in text
    for name in ("is_new", "flag", "tags"):
        assert f"    {name}: {{" not in text
    assert json.loads((tmp_path / "impctl.schema.json").read_text()) == workload_json_schema()
    for command in result["next_commands"]:
        words = shlex.split(command)[1:]
        assert impctl(*words)[0] == 0, command
    (stored,) = impctl("status", "impctl.yaml")[1]["results"]
    assert not stored["stale"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".impctl",
        "impctl.schema.json",
        "impctl.yaml",
        "visits",
    ]


@pytest.mark.slow
def test_names_that_yaml_or_sql_could_misread(impctl: Init, tmp_path: Path) -> None:
    rows = pa.table(
        {
            "select": pa.array(range(9), pa.int64()),
            "y": pa.array(range(9), pa.int64()),
            "a `b` ${HOME} é: #": pa.array([f"x{at // 2}" for at in range(9)]),
        }
    )
    for folder in ('we ird $sal"es', "select", "123", "Select"):
        create_table(str(tmp_path / folder), rows)
    create_table(str(tmp_path / "sub" / "select"), rows)
    folders = ('we ird $sal"es', "select", "123", "sub/select", "Select")
    code, document = impctl("init", *folders, "--out", "x/w.yaml")
    assert code == 0, document
    (result,) = document["results"]
    tables = ["we_ird_sal_es", "select", "t_123", "select_2", "Select_3"]
    assert result["tables"] == tables
    code, document = impctl("check", "x/w.yaml")
    assert code == 0
    assert [entry["supported"] for entry in document["results"]] == [True] * 5
    assert impctl("capture", "x/w.yaml")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("words", [["visits", "--out", "my files/w.yaml"], ["--demo", "a $demo"]])
def test_printed_commands_can_be_pasted_whatever_the_folder(
    impctl: Init, tmp_path: Path, words: list[str]
) -> None:
    create_table(str(tmp_path / "visits"), VISITS)
    code, document = impctl("init", *words)
    (result,) = document["results"]
    assert code == 0
    for command in result["next_commands"]:
        assert shlex.split(command)[2] == result["file"], command
    assert impctl(*shlex.split(result["next_commands"][0])[1:])[0] == 0


def test_a_group_by_column_of_any_name_works(impctl: Init, tmp_path: Path) -> None:
    for number, name in enumerate(("a `b` $c", "order", "é", "1st", "Yes", "group", "x.y")):
        rows = pa.table({name: pa.array([f"v{at % 5}" for at in range(20)])})
        create_table(str(tmp_path / f"t{number}"), rows)
    code, document = impctl("init", *(f"t{number}" for number in range(7)))
    assert code == 0, document
    assert impctl("capture", "impctl.yaml")[0] == 0


def test_nothing_is_overwritten(impctl: Init, tmp_path: Path) -> None:
    create_table(str(tmp_path / "t"), VISITS)
    (tmp_path / "impctl.yaml").write_text("mine")
    code, document = impctl("init", "t")
    assert (code, document["error"]["code"]) == (2, "usage")
    assert (tmp_path / "impctl.yaml").read_text() == "mine"
    assert impctl("init", "t", "--force")[0] == 0
    assert (tmp_path / "impctl.yaml").read_text().startswith("# yaml-language-server")


def test_a_pipe_is_not_written_anew(impctl: Init, tmp_path: Path) -> None:
    create_table(str(tmp_path / "t"), VISITS)
    os.mkfifo(tmp_path / "w.yaml")
    assert impctl("init", "t", "--out", "w.yaml", "--force")[0] == 2
    assert (tmp_path / "w.yaml").is_fifo()


def test_a_schema_file_of_somebody_else_stays(impctl: Init, tmp_path: Path) -> None:
    create_table(str(tmp_path / "t"), VISITS)
    (tmp_path / "impctl.schema.json").write_text("{}")
    assert impctl("init", "t")[0] == 2
    assert (tmp_path / "impctl.schema.json").read_text() == "{}"
    assert not (tmp_path / "impctl.yaml").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["init"], 2),
        (["init", "nowhere"], 3),
        (["init", "--demo", "a", "b"], 2),
        (["init", "--demo", "--out", "x.yaml"], 2),
    ],
)
def test_what_cannot_be(impctl: Init, tmp_path: Path, words: list[str], code: int) -> None:
    ran, document = impctl(*words)
    assert (ran, document["ok"]) == (code, False)
    assert document["error"]["hint"]
    assert list(tmp_path.iterdir()) == []


def test_a_table_without_a_column_for_ranges(impctl: Init, tmp_path: Path) -> None:
    create_table(str(tmp_path / "t"), pa.table({"ok": [True, False]}))
    code, document = impctl("init", "t")
    assert code == 2
    assert "split into ranges" in document["error"]["message"]
    assert not (tmp_path / "impctl.yaml").exists()


def test_mapped_names_and_tables_without_statistics(impctl: Init, tmp_path: Path) -> None:
    name = handmade.write_file(tmp_path / "h", "a.parquet", pa.table({"id": [1, 2, 3]}))
    handmade.commit(
        tmp_path / "h",
        0,
        handmade.protocol(),
        handmade.metadata([handmade.field("id", "long")]),
        handmade.add(name, 3, stats=None),
    )
    assert impctl("init", "h")[0] == 0
    assert "unknown rows in 1 file" in (tmp_path / "impctl.yaml").read_text()


@pytest.mark.slow
def test_the_demo_by_the_commands_it_prints(impctl: Init, tmp_path: Path) -> None:
    """All but the last one, which starts Spark."""
    code, document = impctl("init", "--demo")
    (result,) = document["results"]
    *commands, verify = [shlex.split(command)[1:] for command in result["next_commands"]]
    assert (code, verify[0]) == (0, "verify")
    answers = {}
    for words in commands:
        code, answers[words[0]] = impctl(*words)
        assert code == 0, words
    expected = [
        next(entry["expected"]["files"] for entry in one["attributes"] if entry["chosen"])
        for one in answers["explain"]["results"]
    ]
    assert [one["left"][0]["files"] for one in answers["capture"]["results"]] == expected
    assert len(answers["query"]["results"][0]["rows"]) == 12
    assert answers["changes"]["results"][0]["rows"] == [["insert", 1, 90000001, "449100.00"]]
    assert {one["reason_code"] for one in answers["maintain"]["results"]} == {"incremental"}
    assert impctl("init", "--demo")[0] == 2


@pytest.mark.spark
def test_the_demo_answers(impctl: Init, tmp_path: Path, spark: Any) -> None:
    (result,) = impctl("init", "--demo", "d")[1]["results"]
    for command in result["next_commands"]:
        words = shlex.split(command)[1:]
        if words[0] == "verify":
            words += ["--query", "best_days"]
        code, answer = impctl(*words)
        assert code == 0, command
    assert [one["results_equal"] for one in answer["results"]] == [True]


@pytest.mark.slow
def test_two_files_of_one_folder_have_two_stores(impctl: Init, tmp_path: Path) -> None:
    create_table(str(tmp_path / "visits"), VISITS)
    assert impctl("init", "visits")[0] == 0
    assert impctl("init", "visits", "--out", "sales.yaml")[0] == 0
    for file in ("impctl.yaml", "sales.yaml"):
        assert impctl("capture", file)[0] == 0
        assert "shared_store" not in _checks(impctl("doctor", file)[1])
    assert (tmp_path / ".impctl").is_dir()
    assert (tmp_path / "sales.impctl").is_dir()


def test_two_files_that_share_a_store_are_told(impctl: Init, tmp_path: Path) -> None:
    create_table(str(tmp_path / "visits"), VISITS)
    assert impctl("init", "visits", "--out", "a.yaml")[0] == 0
    text = (tmp_path / "a.yaml").read_text()
    (tmp_path / "b.yml").write_text(text)
    (tmp_path / "c.yaml").write_text(text.replace("store: ", "store: other"))
    (tmp_path / "broken.yaml").write_text("version: [")
    told = _checks(impctl("doctor", "a.yaml")[1])["shared_store"]
    (query,) = impctl("check", "a.yaml")[1]["results"]
    assert (told["level"], told["fix"]) == (
        "warning",
        "give each file a separate `store`, as `impctl init` does",
    )
    assert told["message"] == (
        f"Other files use this store too: b.yml; of `{query['query']}` only the file captured "
        "last has a sketch"
    )


def _checks(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {result["check"]: result for result in document["results"]}

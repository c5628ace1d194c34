"""`impctl gain`: what the ledger says is what the Delta logs say, for hundreds of uses."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from prometheus_client.parser import text_string_to_metric_families

from impctl.service.gain import _hint
from impctl.service.results import COSTS_MORE
from impctl.store.ledger import Uses
from tests.support.made_once import CliOnce
from tests.support.random_cases import random_cases
from tests.support.run_cli import Cli

LOW, HIGH = 30, 70
SQL = f"SELECT g, SUM(x) AS s FROM t WHERE h < {HIGH} GROUP BY g HAVING SUM(x) > 200"


@pytest.fixture
def cli(cli_once: CliOnce) -> Cli:
    def write(folder: Path) -> None:
        for number in range(8):
            append(folder, number)
        (folder / "w.yaml").write_text(
            "version: 1\ntables: {t: {path: t}}\npartitions: {t: {g: {ranges: 25}}}\n"
            f'queries: {{q: {{sql: "{SQL}"}}}}\nstore: st\n'
        )

    return cli_once("gain", write)


def append(folder: Path, seed: int) -> None:
    """A file of a few groups beside each other; half of them are heavy now and then."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(5, 60))
    g = rng.integers(0, 10, count) + int(rng.integers(0, 90))
    h = rng.integers(0, 50, count) + int(rng.integers(0, 50))
    rows = pa.table({"g": g, "h": h, "x": rng.integers(0, 100, count)})
    write_deltalake(str(folder / "t"), rows, mode="append")


def told_by_the_log(folder: Path, ranges: list[tuple[float, float]]) -> dict[str, int]:
    """Files, rows and bytes by the add actions alone: all by `h`, and those in the ranges."""
    actions = DeltaTable(str(folder / "t")).get_add_actions(flatten=True)
    table = pa.table(actions).to_pylist()
    plain = [file for file in table if file["min.h"] < HIGH]
    left = [
        file
        for file in plain
        if any(file["min.g"] < high and file["max.g"] >= low for low, high in ranges)
    ]
    sums = {}
    for name, files in (("", left), ("_plain", plain)):
        sums[f"files{name}"] = len(files)
        sums[f"rows{name}"] = sum(file["num_records"] for file in files)
        sums[f"bytes{name}"] = sum(file["size_bytes"] for file in files)
    return sums


def ranges_of(intervals: list[str]) -> list[tuple[float, float]]:
    """The printed intervals as numbers."""
    result = []
    for text in intervals:
        words = text.replace("L", "").split()
        if "<=" in words:
            result.append((float(words[0]), float(words[-1])))
        elif "<" in words:
            result.append((-np.inf, float(words[-1])))
        elif ">=" in words:
            result.append((float(words[-1]), np.inf))
        elif text.endswith("is not NULL"):
            result.append((-np.inf, np.inf))
    return result


@pytest.mark.slow
@random_cases(fast=10, check=25, total=200, all_when_long=True)
def test_the_ledger_equals_the_logs(cli: Cli, cases: range) -> None:
    uses = len(cases)
    rng, folder = random.Random(5), cli.workload.parent
    cli.good("capture")
    expected = dict.fromkeys(told_by_the_log(folder, []), 0)
    for number in cases:
        if rng.random() < 0.2:
            append(folder, 100 + number)
        used = cli.good("rewrite").results[0]
        for name, value in told_by_the_log(folder, ranges_of(used["intervals"])).items():
            expected[name] += value
    result = cli.one("gain")
    assert result["uses"] == result["used"] == uses
    assert {name: result[name] for name in expected} == expected
    assert result["upkeep_runs"] > 1
    status = cli.one("status")
    assert status["uses"] == uses
    assert status["bytes_left_out"] == expected["bytes_plain"] - expected["bytes"]
    assert cli.good("gain", "--since", "1d").results[0]["uses"] == uses


def families(path: Path) -> dict[str, dict[str, float]]:
    text = path.read_text()
    return {
        family.name: {s.labels.get("query", ""): s.value for s in family.samples}
        for family in text_string_to_metric_families(text)
    }


@pytest.mark.slow
def test_metrics_are_what_prometheus_reads(cli: Cli) -> None:
    cli.good("capture")
    cli.good("rewrite")
    out = cli.workload.parent / "metrics" / "impctl.prom"
    append(cli.workload.parent, 77)
    cli.good("maintain", "--metrics", str(out))
    result = families(out)
    assert result["impctl_maintain_success"] == {"q": 1.0}
    assert result["impctl_maintain_failures"] == {"": 0.0}
    cli.good("gain", "--metrics", str(out))
    result = families(out)
    assert result["impctl_uses"] == {"q": 1.0}
    assert set(result["impctl_left_out_bytes"]) == {"q"}
    assert [file.name for file in out.parent.iterdir()] == ["impctl.prom"]


def test_metrics_of_a_run_that_fails(cli: Cli) -> None:
    cli.good("capture")
    out = cli.workload.parent / "impctl.prom"
    path = str(cli.workload.parent / "t")
    write_deltalake(path, pa.table({"other": [1]}), mode="overwrite", schema_mode="overwrite")
    ran = cli("maintain", "--metrics", str(out))
    assert ran.code != 0
    result = families(out)
    assert result["impctl_maintain_success"] == {"q": 0.0}
    assert result["impctl_maintain_failures"] == {"": 1.0}


def test_metrics_that_cannot_be_written_are_a_failure(cli: Cli) -> None:
    cli.good("capture")
    (cli.workload.parent / "file").write_text("")
    ran = cli("gain", "--metrics", str(cli.workload.parent / "file" / "impctl.prom"))
    assert ran.error["code"] == "metrics_not_written"
    assert ran.results[0]["query"] == "q", "what was found is told all the same"
    assert cli.good("gain", "--metrics", "/dev/null").results


def test_a_query_that_was_never_used(cli: Cli) -> None:
    result = cli.one("gain")
    assert (result["uses"], result["verdict"], result["last_use"]) == (0, "not_used", None)
    cli.good("capture")
    assert cli.good("gain").results[0]["hint"] == "", "nobody had the time to use it"
    append(cli.workload.parent, 77)
    cli.good("maintain")
    assert "stop maintaining the query" in cli.good("gain").results[0]["hint"]


def test_answers_from_kept_rows_are_told_and_are_no_uses(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPCTL_SKETCH", "auto")
    text = cli.workload.read_text().replace(f'"{SQL}"', f'"{SQL}", answer: true')
    cli.workload.write_text(text)
    cli.good("capture")
    append(cli.workload.parent, 77)
    asked = [cli.good("query").results[0]["by"] for _ in range(3)]
    assert asked == ["state"] * 3, "the first reads the query and maintains, the others do not"
    result = cli.one("gain")
    assert (result["kept_answers"], result["uses"], result["verdict"]) == (3, 0, "answers")
    assert result["last_use"] is not None
    table = DeltaTable(str(cli.workload.parent / "t"))
    size = sum(pa.table(table.get_add_actions(flatten=True))["size_bytes"].to_pylist())
    assert result["answers_bytes"] == 3 * size
    assert "3 answers from the materialized result" in cli.text("gain")
    assert "3 answers from the materialized result; last use" in cli.text("status")
    assert ", result materialized" in cli.text("status")
    status = cli.one("status")
    assert status["keeps_answer"]
    assert (status["kept_answers"], status["last_use"]) == (3, result["last_use"])
    out = cli.workload.parent / "impctl.prom"
    cli.good("gain", "--metrics", str(out))
    assert families(out)["impctl_kept_answers"] == {"q": 3.0}


@pytest.mark.parametrize(
    ("uses", "runs", "said"), [(2, 1, "so far"), (2, 3, "maintain it less often")]
)
def test_what_costs_more_than_it_saves_is_told_why(uses: int, runs: int, said: str) -> None:
    result = Uses(uses=uses, bytes=1, bytes_plain=100)
    assert said in _hint(COSTS_MORE, result, runs, lambda: "")


def test_several_queries_are_summed_up(cli: Cli) -> None:
    text = cli.workload.read_text()
    more = f'"{SQL}"}}, kept: {{sql: "{SQL}", answer: true}}'
    cli.workload.write_text(text.replace(f'"{SQL}"}}', more))
    cli.good("capture")
    for name in ("q", "kept", "kept"):
        cli.good("query", "--query", name, "--sketch", "auto")
    shown = cli.text("gain")
    assert "2 queries: 1 use of sketches, 2 answers from materialized results skipped" in shown

"""Flags and environment variables, usage errors, and completion in bash.

`tests/golden` runs every command and option.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from impctl.cli.application import COMMANDS, build_app
from impctl.cli.boundary import run
from impctl.service.results import Outcome
from impctl.service.settings import (
    Example,
    GenerateRequest,
    MeasureRequest,
    Policy,
    Settings,
)
from impctl.workload.load import names_in
from tests.support.run_cli import python, spoken

APPLY_MESSAGE = "Command `apply` needs the names of updates, or `--all`"
BENCH_MESSAGE = "Command `bench` needs either a workload file, `--generate` or `--compare`"


MEASURED = MeasureRequest(("changes",), 2, Path("r.json"), Path("r.html"))
GENERATED = GenerateRequest(
    *(Path("d"), Example.CRIMES), table="t", rows=9, groups=3, sort_rows=True, seed=4,
    source=Path("c.parquet"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "name", "position", "argument"),
    [
        (
            "w.yaml --only changes --repeat 2 --out r.json --report r.html",
            "run_workload",
            1,
            MEASURED,
        ),
        ("--compare a.json b.json", "compare_files", 0, Path("a.json")),
        ("r.json --report r.html", "report_file", 0, Path("r.json")),
        (
            "--generate d --example crimes --rows 9 --groups 3 --sorted --seed 4 --table t "
            "--source c.parquet",
            *("generate", 0, GENERATED),
        ),
    ],
)
def test_bench_calls_a_use_case(
    fake, impctl, words: str, name: str, position: int, argument
) -> None:
    assert impctl("bench", *words.split()).code == 0
    ((called, arguments, _),) = fake.calls
    assert (called, arguments[position]) == (name, argument)
    assert len(fake.settings) == (name == "run_workload")


@pytest.mark.parametrize("command", ["capture", "maintain", "apply"])
def test_dry_run_reaches_the_use_case_and_is_reported(fake, impctl, command: str) -> None:
    words = [command, "w.yaml"] + (["s8"] if command == "apply" else [])
    ran = impctl(*words, "--dry-run")
    assert fake.settings[0].dry_run is True
    assert ran.stderr == "dry run: nothing was written\n"
    impctl(*words)
    assert fake.settings[1].dry_run is False


FLAGS = ["--store", "f", "--policy", "strict", "--lock-timeout", "0", "--spark-profile", "p.yaml"]
VARIABLES = {
    "IMPCTL_STORE": "v",
    "IMPCTL_POLICY": "full",
    "IMPCTL_LOCK_TIMEOUT": "7.5",
    "IMPCTL_SPARK_PROFILE": "q.yaml",
    "IMPCTL_BATCH_ROWS": "42",
}
FROM_FLAGS = Settings(
    Path("w.yaml"), Path("f"), Policy.STRICT, lock_timeout=0.0, spark_profile=Path("p.yaml")
)
FROM_VARIABLES = Settings(
    Path("w.yaml"), Path("v"), Policy.FULL, lock_timeout=7.5, spark_profile=Path("q.yaml")
)


@pytest.mark.parametrize("command", ["capture", "maintain", "query", "rewrite"])
def test_a_flag_overrides_its_variable(fake, impctl, monkeypatch, command: str) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    impctl(command, "w.yaml")
    impctl(command, "w.yaml", *FLAGS)
    assert fake.settings == [FROM_VARIABLES, FROM_FLAGS]


def test_batch_rows_variable_and_empty_variables(fake, impctl, monkeypatch) -> None:
    monkeypatch.setenv("IMPCTL_BATCH_ROWS", "42")
    impctl("maintain", "w.yaml")
    impctl("maintain", "w.yaml", "--batch-rows", "1")
    assert [kwargs["batch_rows"] for _, _, kwargs in fake.calls] == [42, 1]
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    assert impctl("maintain", "w.yaml").code == 0
    assert fake.settings[-1] == Settings(Path("w.yaml"))


CSV_ALONE = "`--escape-formulas` is for CSV alone"
NEEDS_FOLLOW = "requires `--follow`"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("apply w.yaml s8 --all", APPLY_MESSAGE),
        ("query w.yaml --query a --query b", "Command `query` takes one query, not 2"),
        ("maintain w.yaml --detailed-exitcode",
         "Option `--detailed-exitcode` requires `--dry-run`"),
        ("capture w.yaml --detailed-exitcode",
         "Option `--detailed-exitcode` requires `--dry-run`"),
        ("bench w.yaml --generate d", BENCH_MESSAGE),
        ("bench w.yaml --compare a.json b.json", BENCH_MESSAGE),
        ("bench w.yaml --rows 9", "Option `--rows` does not go with a workload"),
        ("bench --generate d --repeat 1", "Option `--repeat` does not go with `--generate`"),
        ("bench --compare a b --only f", "Option `--only` does not go with `--compare`"),
        ("bench r.json", "File `r.json` is a record, which is not measured again"),
        ("status w.yaml -q -v", "`--quiet` and `--verbose` exclude each other"),
        ("maintain w.yaml --policy never", "Invalid value for `--policy` (env var: "
         "`IMPCTL_POLICY`): `never` is not one of `auto`, `incremental`, `strict`, `full`"),
        ("maintain w.yaml --lock-timeout -1", "Invalid value for `--lock-timeout`"),
        ("maintain w.yaml --batch-rows 0", "Invalid value for `--batch-rows`"),
        ("maintain w.yaml --batch-rows many", "Invalid value for `--batch-rows`"),
        ("maintain w.yaml --interval 5s", f"Option `--interval` {NEEDS_FOLLOW} or `--due`"),
        ("maintain w.yaml --max-runs 5", f"Option `--max-runs` {NEEDS_FOLLOW}"),
        ("maintain w.yaml --max-wait 5s", f"Option `--max-wait` {NEEDS_FOLLOW}"),
        ("maintain w.yaml --due --max-wait 5s", f"Option `--max-wait` {NEEDS_FOLLOW}"),
        ("maintain w.yaml --follow --due", "Options `--follow` and `--due` exclude each other"),
        ("maintain w.yaml --point p --follow", "Options `--follow` and `--point` exclude"),
        ("maintain w.yaml --point p --due", "Options `--due` and `--point` exclude each other"),
        ("maintain w.yaml --point p --query q", "Options `--point` and `--query` exclude"),
        ("maintain w.yaml --follow --dry-run", "Options `--follow` and `--dry-run` exclude"),
        ("why w.yaml --row n=17 --format csv", "`--format` goes with `--without` only"),
        ("query w.yaml --out a.csv --format csv", "`--out` excludes `--format`"),
        ("query w.yaml --format xml", "Invalid value for `--format`: `xml` is not one of `table`, "
         "`csv`, `json`, `jsonl`, `markdown`"),
        ("query w.yaml --escape-formulas", CSV_ALONE),
        ("query w.yaml --escape-formulas --format jsonl", CSV_ALONE),
        ("query w.yaml --escape-formulas --out a.jsonl", CSV_ALONE),
    ],
)  # fmt: skip
def test_usage_errors(fake, impctl, words: str, message: str) -> None:
    ran = impctl(*words.split())
    assert (ran.code, ran.stdout) == (2, "")
    assert " ".join(ran.stderr.split()).startswith(f"error: {message}")
    assert "\nhint: " in ran.stderr
    json_run = impctl(*words.split(), "--json")
    document = json.loads(json_run.stdout)
    assert (json_run.code, json_run.stderr) == (2, "")
    assert (document["ok"], document["command"]) == (False, words.split()[0])
    assert document["error"]["code"] == "usage"
    assert document["error"]["message"].startswith(message)
    assert fake.calls == []


def test_choices_of_a_missing_argument_are_listed(impctl) -> None:
    ran = impctl("completion")
    message = "Missing argument `shell`. Choose from: bash, zsh, fish"
    assert (ran.code, ran.stderr.partition(" [usage]\n")[0]) == (2, f"error: {message}")


def test_json_excludes_a_format_and_needs_a_command(fake, impctl) -> None:
    assert (
        "`--json` excludes `--format`" in impctl("query", "w", "--json", "--format", "csv").stdout
    )
    document = json.loads(impctl("--json").stdout)
    assert (document["command"], document["error"]["code"]) == (None, "usage")
    assert fake.calls == []


def test_steps_are_printed_with_verbose_only(fake, impctl) -> None:
    fake.steps = ("capturing q_top", "storing")
    fake.answer = Outcome()
    assert impctl("capture", "w.yaml").stderr == ""
    assert impctl("capture", "w.yaml", "--json", "-v").stderr == (
        "[1/2] capturing q_top\n[2/2] storing\n"
    )


WORKLOAD = """\
version: 1
tables: {sales: {path: "${NOT_SET}"}}
queries:
  q_top: {sql: SELECT 1}
  q_brand: {sql: this is no SQL}
  "has space": {sql: x}
updates:
  - {name: s8, delete: {table: sales, where: "a = 1"}}
  - {name: old}
  - wrong
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a workload and a script `bin/impctl`."""
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "impctl"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m impctl "$@"\n')
    script.chmod(0o755)
    return tmp_path


Complete = Callable[..., tuple[int, str]]


@pytest.fixture
def complete(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Complete:
    """Runs impctl as a completing shell does, without a process; returns exit code and output."""
    monkeypatch.chdir(folder)

    def call(*words: str, **variables: str) -> tuple[int, str]:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code = run(build_app(), words)
        captured = capsys.readouterr()
        assert captured.err == ""
        return code, captured.out

    return call


def completions(complete: Complete, line: str) -> list[str]:
    """The completions that bash gets for the last word of a line."""
    position = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    code, words = complete(**position, _IMPCTL_COMPLETE="complete_bash")
    assert code == 0
    return words.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("impctl ", list(COMMANDS)),
        ("impctl st", ["status"]),
        ("impctl status w.yaml --run", ["--runs"]),
        ("impctl query w.yaml --query ", ["q_top", "q_brand"]),
        ("impctl explain w.yaml --json --query q_top --query q_", ["q_brand"]),
        ("impctl apply w.yaml s8 ", ["old"]),
        ("impctl maintain w.yaml --policy in", ["incremental"]),
        ("impctl completion ", ["bash", "zsh", "fish"]),
        ("impctl status w", []),
        ("impctl capture w.yaml --store w", []),
        ("impctl bench --report w", []),
        ("impctl status gone.yaml --query ", []),
        ("impctl status --query ", []),
    ],
)
def test_completions_in_bash(complete: Complete, line: str, words: list[str]) -> None:
    assert completions(complete, line) == words


def test_the_completion_script_works_in_bash(folder: Path, complete: Complete) -> None:
    (folder / "completion.bash").write_text(complete("completion", "bash")[1])

    def completed(*words: str) -> list[str]:
        listed = " ".join(f"'{word}'" for word in words)
        code = (
            "source ./completion.bash\n"
            'function=$(complete -p impctl | sed "s/.*-F \\([^ ]*\\) .*/\\1/")\n'
            f"COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}\n"
            '$function impctl; printf "%s\\n" "${COMPREPLY[@]}"\n'
        )
        path = f"{folder}/bin:{os.environ['PATH']}"
        ran = spoken("bash", "-c", code, cwd=folder, PATH=path)
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout.split()

    assert completed("impctl", "query", "w.yaml", "--query", "") == ["q_top", "q_brand"]


@pytest.mark.parametrize("text", ["", "queries: [", "queries: 3", "- a", "queries: {1: {}}", "\0"])
def test_an_invalid_file_has_no_completions(folder: Path, complete: Complete, text: str) -> None:
    (folder / "w.yaml").write_text(text)
    assert names_in(folder / "w.yaml", "queries") == ()
    assert completions(complete, "impctl status w.yaml --query ") == []


@pytest.mark.parametrize(("shell", "word"), [("zsh", "compdef"), ("fish", "complete --command")])
def test_completion_in_other_shells(complete: Complete, shell: str, word: str) -> None:
    _, script = complete("completion", shell)
    assert word in script
    assert "_IMPCTL_COMPLETE=complete_" + shell in script
    line = {"_TYPER_COMPLETE_ARGS": "impctl status w.yaml --query q_b"}
    variables = {"_IMPCTL_COMPLETE": f"complete_{shell}", **line}
    _, words = complete(_TYPER_COMPLETE_FISH_ACTION="get-args", **variables)
    assert "q_brand" in words
    assert "q_top" not in words


@pytest.mark.parametrize(
    ("line", "code"), [("impctl status w", 1), ("impctl status w.yaml --query ", 0)]
)
def test_fish_completes_files_where_they_are_expected(
    complete: Complete, line: str, code: int
) -> None:
    variables = {"_IMPCTL_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": line}
    assert complete(_TYPER_COMPLETE_FISH_ACTION="is-args", **variables) == (code, "")


def test_completion_loads_no_large_modules(folder: Path) -> None:
    code = (
        "import sys\nfrom impctl.cli.main import main\n"
        "try: main()\nfinally: print(*sys.modules, file=sys.stderr)\n"
    )
    line = {"COMP_WORDS": "impctl status w.yaml --query ", "COMP_CWORD": "4"}
    ran = python("-c", code, cwd=folder, _IMPCTL_COMPLETE="complete_bash", **line)
    assert ran.stdout.split() == ["q_top", "q_brand"]
    loaded = set(ran.stderr.split())
    assert "yaml" in loaded
    assert loaded.isdisjoint({"pyspark", "pyarrow", "numpy", "deltalake", "sqlglot"})

"""The command line, called in this process, and the small workloads and folders it is run on."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pexpect
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import Struct

from impctl.bench.data import running_example_table
from impctl.cli.application import build_app, commands_for
from impctl.cli.boundary import run
from impctl.cli.signals import raise_on_signal, take_signals
from impctl.errors import ImpctlError
from impctl.tables.write.maintenance import create_table


def refused(
    kind: type[ImpctlError], code: str, match: str | None = None
) -> pytest.RaisesExc[ImpctlError]:
    """Expect an error of this kind and code in the block."""
    return pytest.raises(kind, match=match, check=lambda error: error.code == code)


def spied(monkeypatch: MonkeyPatch, owner: object, name: str) -> list[tuple[Any, ...]]:
    """Record the positional arguments of each call of a function or method."""
    calls: list[tuple[Any, ...]] = []
    real = getattr(owner, name)

    def spy(*arguments: Any, **words: Any) -> Any:
        calls.append(arguments)
        return real(*arguments, **words)

    monkeypatch.setattr(owner, name, spy)
    return calls


Spoken = subprocess.CompletedProcess[str]


def spoken(*command: object, cwd: Path | None = None, **environment: str) -> Spoken:
    """Run a command to its end, successful or not, with this process's modules."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    words = [*map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, timeout=600, cwd=cwd, env=env)


def python(*words: object, cwd: Path | None = None, **environment: str) -> Spoken:
    """The same with this Python, which ignores modules in the current folder."""
    return spoken(sys.executable, "-P", *words, cwd=cwd, **environment)


def called(*words: str) -> Spoken:
    """Call `impctl` with these words in this process, and capture its output."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        code = run(build_app(commands_for(words)), words)
    return Spoken(words, code, stdout.getvalue(), stderr.getvalue())


def on_terminal(*words: object, columns: int = 80, **environment: str) -> str:
    """The output of this Python with these words on a real terminal."""
    outside = {"COLUMNS", "NO_COLOR", "FORCE_COLOR"}
    env = {name: value for name, value in os.environ.items() if name not in outside}
    env |= {"TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    arguments, size = ["-P", *map(str, words)], (50, columns)
    process = pexpect.spawn(
        sys.executable, arguments, env=env, dimensions=size, encoding="utf-8", timeout=120
    )
    return str(process.read())


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on signals that ask to end; restore their handlers afterwards."""
    numbers = take_signals(lambda: None)
    raise_on_signal()
    try:
        yield
    finally:
        for number in numbers:
            is_int = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_int else signal.SIG_DFL)


Capsys = pytest.CaptureFixture[str]
MonkeyPatch = pytest.MonkeyPatch
Words = tuple[str, ...]


class Ran(Struct, frozen=True):
    """One call: its exit code, its JSON document, its stderr."""

    code: int
    document: dict[str, Any]
    stderr: str

    @property
    def results(self) -> list[dict[str, Any]]:
        result = self.document["results"]
        assert isinstance(result, list)
        return result

    @property
    def error(self) -> dict[str, Any]:
        result = self.document["error"]
        assert isinstance(result, dict), self.document
        return result

    @property
    def refusal(self) -> tuple[int, str]:
        """The exit code, and the code of the error."""
        return self.code, self.error["code"]


class Cli:
    """Runs `impctl COMMAND WORKLOAD --json ...` and reads the one document it prints."""

    def __init__(self, capsys: Capsys, workload: Path) -> None:
        self.capsys = capsys
        self.workload = workload

    @classmethod
    def over(
        cls,
        capsys: Capsys,
        folder: Path,
        workload: str | Mapping[str, Any],
        file: str = "w.yaml",
        **tables: pa.Table,
    ) -> Cli:
        """Write a workload file and tables into a folder."""
        return cls(capsys, write_files(folder, workload, file, **tables))

    @property
    def folder(self) -> Path:
        """The folder of the workload file and of everything that it names."""
        return self.workload.parent

    def path(self, table: str) -> str:
        return str(self.folder / table)

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(self.path(name))

    def append(self, table: str, rows: pa.Table) -> None:
        write_deltalake(self.path(table), rows, mode="append")

    @classmethod
    def asking(
        cls,
        capsys: Capsys,
        folder: Path,
        queries: Mapping[str, str | Mapping[str, Any]],
        tables: Iterable[str] | Mapping[str, Mapping[str, Any]] = ("t",),
        file: str = "w.yaml",
        **document: Any,
    ) -> Cli:
        """Write a workload of queries (as SQL or full entries) and other sections.

        Its tables are the folders of these names beside the file, unless full entries are given.
        """
        defaults = {"store": ".impctl", "spark": {"master": "local[2]"}}
        document = {"tables": tables, "queries": queries, **defaults, **document}
        return cls.over(capsys, folder, document, file)

    def __call__(self, command: str, *arguments: str) -> Ran:
        self.capsys.readouterr()
        code = run(build_app(), [command, str(self.workload), "--json", *arguments])
        output = self.capsys.readouterr()
        assert "Traceback" not in output.out + output.err
        return Ran(code, json.loads(output.out), output.err)

    def good(self, command: str, *arguments: str) -> Ran:
        """The same, which must succeed."""
        ran = self(command, *arguments)
        assert ran.code == 0, ran.document
        return ran

    def one(self, command: str, *arguments: str) -> dict[str, Any]:
        """The only result of a successful command."""
        (result,) = self.good(command, *arguments).results
        return result

    def by_query(self, command: str, *arguments: str) -> dict[str, dict[str, Any]]:
        """The results of a successful command, by query."""
        return {result["query"]: result for result in self.good(command, *arguments).results}

    def warnings(self, command: str, *arguments: str) -> list[str]:
        """The warnings of a successful command."""
        result = self.good(command, *arguments).document["warnings"]
        assert isinstance(result, list)
        return result

    def actions(self, *arguments: str) -> set[str]:
        """What `maintain` did to the queries."""
        return {result["action"] for result in self.good("maintain", *arguments).results}

    def fragments(
        self, command: str = "status", *arguments: str
    ) -> dict[tuple[str, str], list[int]]:
        """The ranges of all sketches, by query and table, that a command reports."""
        results = self.good(command, *arguments).results
        return {(r["query"], s["table"]): s["ranges"] for r in results for s in r["sketches"]}

    def text(self, command: str, *options: str) -> str:
        """The text on stdout, with white space collapsed."""
        self.capsys.readouterr()
        assert run(build_app(), [command, str(self.workload), *options]) == 0
        return " ".join(self.capsys.readouterr().out.split())

    def edit(self, before: str, after: str, count: int = -1) -> None:
        """Replace text in the workload file."""
        text = self.workload.read_text()
        assert before in text
        self.workload.write_text(text.replace(before, after, count))

    def captured(self, *options: str) -> Cli:
        """Capture all queries of this workload."""
        self.good("capture", *options)
        return self

    def verified(
        self, *words: str, may_slack: str = "", may_tie: str = "", is_exact: bool = True
    ) -> list[dict[str, Any]]:
        """Verify all sketches with Spark: they lack no range, and do not change results.

        If `is_exact`, they have no surplus range. The named queries are exempt.
        """
        results = self.good("verify", "--results", *words).results
        for result in results:
            assert result["covers"], result
            assert not is_exact or result["slack"] == 0 or result["query"] == may_slack, result
            assert result["results_equal"] is True or result["query"] == may_tie, result
        return results


def write_files(
    folder: Path,
    workload: str | Mapping[str, Any],
    workload_file: str = "w.yaml",
    **tables: pa.Table,
) -> Path:
    """Write these tables, and the workload file, given as text or as its content.

    A query may be given as SQL. The tables written here need no entry. Tables given only by name
    are folders beside the file.
    """
    for name, rows in tables.items():
        create_table(str(folder / name), rows)
    if not isinstance(workload, str):
        entries = workload.get("tables", ())
        specs = (
            entries if isinstance(entries, Mapping) else {name: {"path": name} for name in entries}
        )
        specs = {**{name: {"path": name} for name in tables}, **specs}
        queries = workload["queries"].items()
        queries = {name: {"sql": one} if isinstance(one, str) else one for name, one in queries}
        content = {"version": 1, **workload, "tables": specs, "queries": queries}
        workload = json.dumps({**content, "store": content.get("store", ".impctl")})
    file = folder / workload_file
    file.write_text(workload)
    return file


CliOf = Callable[..., Cli]


@pytest.fixture
def cli_of(tmp_path: Path, capsys: Capsys) -> CliOf:
    """The command line over a workload, and tables, in the folder of the test: `Cli.over`."""

    return partial(Cli.over, capsys, tmp_path)


class MadeOnce:
    """Folders by name, with an unused copy of each."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._created: set[str] = set()

    def folder(self, name: str, make: Callable[[Path], object]) -> Path:
        """The folder with what `make` writes into it; `name` identifies its content."""
        folder, saved = self._root / name / "work", self._root / name / "saved"
        shutil.rmtree(folder, ignore_errors=True)
        if name in self._created:
            shutil.copytree(saved, folder, symlinks=True)
        else:
            shutil.rmtree(saved, ignore_errors=True)
            folder.mkdir(parents=True)
            make(folder)
            shutil.copytree(folder, saved, symlinks=True)
            self._created.add(name)
        return folder


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    return MadeOnce(tmp_path_factory.mktemp("made_once"))


CliOnce = Callable[..., Cli]


@pytest.fixture
def cli_once(capsys: pytest.CaptureFixture[str], made_once: MadeOnce) -> CliOnce:
    """The command line over the workload of a folder that `write` writes once.

    Then `and_then` is called once with it, such as `Cli.captured`.
    """

    def cli_for(
        name: str,
        write: Callable[[Path], object],
        and_then: Callable[[Cli], object] = lambda cli: None,
    ) -> Cli:
        def prepare(folder: Path) -> None:
            write(folder)
            and_then(Cli(capsys, folder / "w.yaml"))

        return Cli(capsys, made_once.folder(name, prepare) / "w.yaml")

    return cli_for


WORKLOAD = """\
version: 1
tables:
  t: {path: t}
partitions:
  t:
    g: {boundaries: [2, 4, 6]}
    x: {boundaries: [10, 20]}
queries:
  q:
    sql: |
      SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t
      GROUP BY g HAVING COUNT(*) > 2
    sketch: {t: g}
    policy: POLICY
store: .impctl
spark: {master: "local[2]"}
"""

ROWS = pa.table(
    {
        "g": pa.array([0, 0, 0, 1, 3, 3, 3, 5, 7, None], pa.int64()),
        "x": pa.array([5, 15, 25, 5, 5, 15, 25, 5, 15, 25], pa.int64()),
        "note": pa.array(list("abcdefghij"), pa.string()),
    }
)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A Delta table with a change feed; ranges of g in the sketch of `q`: 0 and 1."""
    path = str(tmp_path / "t")
    create_table(path, ROWS)
    return path


@pytest.fixture
def cli(tmp_path: Path, table: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The workload with policy `incremental`: what cannot be maintained is an error."""
    file = tmp_path / "w.yaml"
    file.write_text(WORKLOAD.replace("POLICY", "incremental"))
    return Cli(capsys, file)


_TEXT = """\
# Seven sales, four price ranges (0 to 3), two dashboards, and updates to try.
version: 1
name: demo
tables:
  sales: {path: sales}
partitions:
  sales:
    price: {boundaries: [601, 1001, 1501]}
    brand: {ranges: 16}             # about equally many rows in each
queries:
  # Captured on price: ranges 2 and 3, result (Apple, 5074). After s8: 1, 2 and 3, and HP joins.
  q_top:
    sql: |
      SELECT brand, SUM(price * numSold) AS rev FROM sales
      GROUP BY brand HAVING SUM(price * numSold) > 5000
    sketch: {sales: price}             # safe, because no price is negative
    policy: auto                       # or incremental, strict, full
  # An average moves both ways as rows come and go, so only the grouping column is safe.
  q_brand:
    sql: |
      SELECT brand, AVG(price) AS avg_price FROM sales
      GROUP BY brand HAVING AVG(price) > 1000
    sketch: {sales: brand}
    maintain: eager                    # a sketch for every version; lazy is the default
updates:
  - name: s8
    insert:
      table: sales
      rows:
        - {sid: 8, brand: HP, productName: "HP ProBook 650 G10", price: 1299, numSold: 1}
  - {name: old, delete: {table: sales, where: "sid = 3"}}
  - {name: raise, update: {table: sales, set: {price: "price * 1.1"}, where: "brand = 'Dell'"}}
store: .impctl
spark: {master: "local[2]", conf: {spark.driver.memory: 1g}}
"""


def write_running_example(folder: Path) -> Path:
    """The workload file `demo.yaml`, beside the table that it names."""
    folder.mkdir(parents=True, exist_ok=True)
    create_table(str(folder / "sales"), running_example_table())
    file = folder / "demo.yaml"
    file.write_text(_TEXT, encoding="utf-8")
    return file

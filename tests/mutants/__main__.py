"""Runs the tests against every mutant and prints which ones they kill.

    python -m tests.mutants map --suite fast          # which tests run which mutated function
    python -m tests.mutants run --suite fast          # one line per mutant, then the survivors
    python -m tests.mutants table OLD NEW CHECK       # the results of several runs, as Markdown

`run` first runs the suite over the unchanged product, which must pass. It gives each mutant a copy
of the tree and runs only the tests that execute the mutated function, the quickest first, until one
fails. Mutants that survive are then applied together, and the whole suite runs once over them;
each test that fails is tried on every mutant alone. With `--tests TREE` the tests come from another
checkout. Results go to `--out` after every mutant, and a restarted run continues there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import coverage
from msgspec import Struct
from msgspec.structs import asdict

from tests.mutants.mutants import Mutant, read_mutants

HERE = Path(__file__).parents[2]
SUITES = {
    "fast": "not spark and not slow",
    "check": "not alone and not long",
    "check-only": "(spark or slow) and not alone and not long",
}
"""Marker expressions; `check-only` is what `check` runs beyond the fast tests."""
DATA = ("IMPCTL_CRIMES", "IMPCTL_FIXTURES")
"""Variables with paths of real data. Tests get no other variables of impctl."""


class Verdict(Struct, frozen=True):
    """`by` is the test that failed; `tests` counts those that were selected."""

    verdict: str
    by: str
    tests: int
    seconds: float


class Selection(Struct, frozen=True):
    """For each mutant, the tests that execute its function, with their seconds."""

    tests: dict[str, dict[str, float]]

    @classmethod
    def read(cls, path: Path) -> Selection:
        return cls(json.loads(path.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("map", "run"):
        command = commands.add_parser(name)
        command.add_argument("--suite", choices=SUITES, default="fast")
        command.add_argument("--tests", type=Path, default=HERE, metavar="TREE")
        command.add_argument("--jobs", type=int, default=2)
        command.add_argument("--only", default="", help="mutants whose name contains this")
        command.add_argument("--map", type=Path, default=None, help="default: .mutants-SUITE.json")
        command.add_argument("--out", type=Path, default=None, help="results, as JSON")
        command.add_argument(
            "--survivors-of",
            type=Path,
            default=None,
            help="only mutants that live in these results",
        )
    table = commands.add_parser("table")
    table.add_argument("results", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "table":
        print("\n".join(table_lines(options.results)))
        return
    map_path = options.map or HERE / f".mutants-{options.suite}.json"
    mutants = [mutant for mutant in read_mutants() if options.only in mutant.name]
    if options.command == "map":
        make_map(mutants, options.tests, options.suite, options.jobs, map_path)
        return
    if options.survivors_of is not None:
        before = json.loads(options.survivors_of.read_text())
        mutants = [m for m in mutants if before[m.name]["verdict"] == "survives"]
    out = options.out or HERE / f".mutants-{options.suite}-results.json"
    run_all(mutants, options.tests, options.suite, options.jobs, Selection.read(map_path), out)


# -- which tests execute which function ------------------------------------------------------------


def make_map(mutants: Sequence[Mutant], tests: Path, suite: str, jobs: int, path: Path) -> None:
    """Runs the suite once under coverage, of the mutated files alone, with a context per test."""
    with copied_tree(tests) as tree:
        files = sorted({mutant.file for mutant in mutants})
        settings = tree / "mutants.coveragerc"
        settings.write_text("[run]\ninclude =\n" + "".join(f"    {tree / f}\n" for f in files))
        report = tree / "times.xml"
        selected = ["--cov", "--cov-context=test", f"--cov-config={settings}", "--cov-report="]
        workers = ["-n", str(jobs), "--dist", "worksteal", f"--junitxml={report}"]
        run_pytest(tree, suite, [*selected, *workers], None, None)
        seconds = _seconds(report)
        data = coverage.CoverageData(str(tree / ".coverage"))
        data.read()
        result: dict[str, dict[str, float]] = {}
        for mutant in mutants:
            lines = set(mutant.lines(tree)[1:]) or set(mutant.lines(tree))
            contexts = data.contexts_by_lineno(str(tree / mutant.file))
            ids = {name.rsplit("|", 1)[0] for n in lines for name in contexts.get(n, ()) if name}
            result[mutant.name] = {test: seconds.get(_key(test), 1.0) for test in sorted(ids)}
    path.write_text(json.dumps(result, indent=0))
    print(
        f"{path}: {sum(map(bool, result.values()))} of {len(result)} mutants are executed by tests"
    )


def _seconds(report: Path) -> dict[tuple[str, str], float]:
    """Seconds of each test by class and name, as a JUnit report spells them."""
    return {
        (case.get("classname", ""), case.get("name", "")): float(case.get("time", "1"))
        for case in ElementTree.parse(report).iter("testcase")
    }


def _key(test: str) -> tuple[str, str]:
    file, name = test.split("::", 1)
    return file.removesuffix(".py").replace("/", "."), name


# -- running the mutants ---------------------------------------------------------------------------


def run_all(
    mutants: Sequence[Mutant], tests: Path, suite: str, jobs: int, selection: Selection, out: Path
) -> None:
    results: dict[str, dict[str, object]] = json.loads(out.read_text()) if out.exists() else {}
    remaining = [mutant for mutant in mutants if mutant.name not in results]
    refuse_failing_tests(tests, suite, jobs)

    def record(mutant: Mutant, verdict: Verdict) -> None:
        results[mutant.name] = {"expect": expectation(mutant), **asdict(verdict)}
        out.write_text(json.dumps(results, indent=1))
        print(f"{verdict.verdict:9} {mutant.name}  {verdict.by}", flush=True)

    with copied_trees(tests, jobs) as trees, ThreadPoolExecutor(jobs) as threads:

        def judge(mutant: Mutant) -> tuple[Mutant, Verdict]:
            tree = trees.pop()
            try:
                return mutant, judged(mutant, tree, suite, selection.tests.get(mutant.name, {}))
            finally:
                trees.append(tree)

        for mutant, verdict in threads.map(judge, remaining):
            record(mutant, verdict)
    survivors = [
        mutant
        for mutant in mutants
        if results[mutant.name]["verdict"] == "survives"
        and results[mutant.name]["by"] != "whole suite"
    ]
    for mutant, verdict in judged_together(survivors, tests, suite, jobs):
        record(mutant, verdict)
    print("\n".join(summary_lines(results)))


def refuse_failing_tests(tests: Path, suite: str, jobs: int) -> None:
    """A test that fails on the unchanged product would seem to kill every mutant."""
    with copied_tree(tests) as tree:
        code, failed = run_pytest(tree, suite, ["-n", str(jobs), "--dist", "worksteal"], None, None)
    if code != 0:
        sys.exit(f"these tests fail without a mutant, so nothing was run:\n{failed}")


def judged(mutant: Mutant, tree: Path, suite: str, selected: dict[str, float]) -> Verdict:
    """The verdict of the tests that execute the function: the quickest first, in three parts."""
    start = time.monotonic()
    ordered = sorted(selected, key=lambda test: (selected[test], test))
    with applied([mutant], tree):
        for part in (ordered[:60], ordered[60:500], ordered[500:]):
            if not part:
                continue
            limit = 240 + 10 * sum(selected[test] for test in part)
            code, by = run_pytest(tree, suite, ["-x"], part, limit)
            if code != 0:
                return Verdict("killed", by, len(ordered), round(time.monotonic() - start, 1))
    return Verdict("survives", "", len(ordered), round(time.monotonic() - start, 1))


def judged_together(
    survivors: Sequence[Mutant], tests: Path, suite: str, jobs: int
) -> Iterator[tuple[Mutant, Verdict]]:
    """Run the suite over all mutants at once, then each failed test on each mutant alone."""
    remaining = list(survivors)
    while remaining:
        group = _apart(remaining)
        start = time.monotonic()
        with copied_tree(tests) as tree, applied(group, tree):
            workers = ["-n", str(jobs), "--dist", "worksteal"]
            _, failed = run_pytest(tree, suite, workers, None, None)
        names = [name for name in failed.split("\n") if name]
        killed: dict[Mutant, str] = {}
        with copied_tree(tests) as tree:
            for mutant in group if names else ():
                with applied([mutant], tree):
                    code, by = run_pytest(tree, suite, ["-x"], names, 3600)
                if code != 0:
                    killed[mutant] = by
        seconds = round(time.monotonic() - start, 1)
        if names and not killed:
            print("failed over all together, over none alone:", *names, sep="\n  ")
        for mutant in group:
            remaining.remove(mutant)
            if mutant in killed:
                yield mutant, Verdict("killed", killed[mutant], len(names), seconds)
            else:
                yield mutant, Verdict("survives", "whole suite", 0, seconds)


def _apart(mutants: Sequence[Mutant]) -> list[Mutant]:
    """As many as can be applied together: at most one for each function."""
    return list({(mutant.file, mutant.function): mutant for mutant in reversed(mutants)}.values())


def run_pytest(
    tree: Path, suite: str, options: Sequence[str], tests: Sequence[str] | None, limit: float | None
) -> tuple[int, str]:
    """Exit code of pytest, and the tests that failed, a line each."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "-rfE",
        "--tb=no",
        "-p",
        "no:cacheprovider",
    ]
    # The lists of mutants match only the unchanged product.
    command += ["--ignore", "tests/mutants", "-m", SUITES[suite], *_in_order(), *options]
    if tests is not None:
        chosen = tree / "chosen-tests.txt"
        chosen.write_text("\n".join(tests))
        command.append(f"@{chosen}")
    environment = {k: v for k, v in os.environ.items() if k in DATA or not k.startswith("IMPCTL_")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment |= {"PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": str(tree / "bytecode")}
    try:
        completed = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return 1, "does not end"
    failed = [
        line.split(" ", 1)[1].split(" - ", 1)[0]
        for line in completed.stdout.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    if completed.returncode not in (0, 1, 5):
        failed = failed or [(completed.stdout + completed.stderr)[-300:].replace("\n", " ")]
    return (0 if completed.returncode == 5 else completed.returncode), "\n".join(failed)


def _in_order() -> list[str]:
    """Options that run tests in the given order, against a plugin that shuffles them."""
    return ["-p", "no:randomly"]


@contextmanager
def applied(mutants: Iterable[Mutant], tree: Path) -> Iterator[None]:
    """Apply the mutants to the tree, and restore its files afterwards."""
    originals: dict[str, str] = {}
    try:
        for mutant in mutants:
            text = (tree / mutant.file).read_text(encoding="utf-8")
            originals.setdefault(mutant.file, text)
            _write(tree / mutant.file, mutant.applied(text))
        yield
    finally:
        for file, text in originals.items():
            _write(tree / file, text)


_SECONDS = itertools.count(int(time.time()))


def _write(path: Path, text: str) -> None:
    """Write with a new modification second: Python finds bytecode by size and whole seconds."""
    path.write_text(text, encoding="utf-8")
    second = next(_SECONDS)
    os.utime(path, (second, second))


@contextmanager
def copied_tree(tests: Path) -> Iterator[Path]:
    """The product of this checkout with the tests of `tests`, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        _copy(HERE, ":!tests", tree)
        _copy(tests, "tests", tree)
        yield tree


def _copy(checkout: Path, pathspec: str, tree: Path) -> None:
    """The files of a checkout that match the pathspec and are not ignored; links stay links."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", pathspec]
    names = subprocess.run(listed, cwd=checkout, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if os.path.lexists(checkout / name):  # not deleted since the last commit
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, tree / name, follow_symlinks=False)


@contextmanager
def copied_trees(tests: Path, count: int) -> Iterator[list[Path]]:
    with copied_tree(tests) as first:
        others = [first.with_name(f"{first.name}-{number}") for number in range(1, count)]
        try:
            for other in others:
                shutil.copytree(first, other, symlinks=True)
            yield [first, *others]
        finally:
            for other in others:
                shutil.rmtree(other, ignore_errors=True)


# -- results ---------------------------------------------------------------------------------------


def expectation(mutant: Mutant) -> str:
    return "killed" if mutant.survives is None else "survives"


def summary_lines(results: dict[str, dict[str, object]]) -> Iterator[str]:
    counts = Counter((str(r["expect"]), str(r["verdict"])) for r in results.values())
    for (expect, verdict), count in sorted(counts.items()):
        yield f"expected {expect}: {verdict} {count}"


def table_lines(paths: Sequence[Path]) -> Iterator[str]:
    """One row for each mutant, one column for each run, and the counts."""
    runs = {path.stem: json.loads(path.read_text()) for path in paths}
    yield "| mutant | expected | " + " | ".join(runs) + " |"
    yield "|---|---|" + "---|" * len(runs)
    counts: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for mutant in read_mutants():
        cells = []
        for name, results in runs.items():
            result = results.get(mutant.name, {"verdict": "-", "by": ""})
            counts[name][expectation(mutant), result["verdict"]] += 1
            cells.append(result["verdict"])
        yield f"| `{mutant.name}` | {expectation(mutant)} | " + " | ".join(cells) + " |"
    yield ""
    for name, count in counts.items():
        text = ", ".join(f"expected {e}: {n} {v}" for (e, v), n in sorted(count.items()))
        yield f"- {name}: {text}"


if __name__ == "__main__":
    main()

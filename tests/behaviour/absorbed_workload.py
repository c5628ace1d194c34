"""Recursive queries that ask for `provenance: absorption`, beside the same ones by ranks.

And what their functions tell, held against DuckDB over the tables without some rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import duckdb
import pytest

from tests.behaviour.recursive_workload import QUERIES, tables_beside
from tests.support.diagrams import with_diagrams
from tests.support.run_cli import Cli

SHIPS = {
    "lazy": "absorption",
    "eager": "{kind: absorption, ship: eager, nodes: 1000000}",
}


def fast_by(ship: str) -> pytest.MarkDecorator:
    """Parametrizes `provenance`: functions shipped this way, and in `make check` the other."""
    return pytest.mark.parametrize(
        "provenance",
        [
            pytest.param(
                said, id=name, marks=[with_diagrams, *([] if name == ship else [pytest.mark.slow])]
            )
            for name, said in SHIPS.items()
        ],
    )


BY_RANKS = "ranks"


def asking(cli: Cli, provenance: str, policy: str = "incremental") -> None:
    """The workload's queries ask for this provenance, under this policy."""
    text = cli.workload.read_text()
    text = text.replace("policy: incremental", f"policy: {policy}")
    cli.workload.write_text(text.replace("lineage: all", f"provenance: {provenance}, lineage: all"))


class Both:
    """The same queries over the same tables, by absorption and by ranks."""

    def __init__(self, cli: Cli, provenance: str) -> None:
        self.cli = cli
        beside = cli.workload.with_name(f"{BY_RANKS}.yaml")
        text = cli.workload.read_text()
        beside.write_text(text.replace("store: .impctl", f"store: .{BY_RANKS}"))
        self.ranks = Cli(cli.capsys, beside)
        asking(cli, provenance)

    def good(self, *arguments: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return tuple(one.good(*arguments).results for one in (self.cli, self.ranks))  # type: ignore[return-value]


def check_functions(cli: Cli, names: Iterable[str], condition: str) -> int:
    """What would go without these links is told from the state, and is what goes by DuckDB; how
    many rows that is."""
    count = 0
    for name in names:
        words = ("why", "--query", name, "--without", f"links: {condition}")
        (told,) = cli.good(*words).results
        assert told["by"] == "state", name
        gone = changed(told)
        assert gone == gone_by_duckdb(cli, QUERIES[name], condition), name
        count += gone.total()
    return count


def changed(result: dict[str, Any]) -> Counter[tuple[object, ...]]:
    """The rows of a change, those that came with negative counts."""
    counts: Counter[tuple[object, ...]] = Counter()
    for row in result["rows"]:
        of = dict(zip(result["columns"], row, strict=True))
        change, copies = of.pop("_change"), of.pop("_copies")
        counts[tuple(of.values())] += copies if change == "delete" else -copies
    return counts


def gone_by_duckdb(cli: Cli, sql: str, condition: str) -> Counter[tuple[object, ...]]:
    """The rows that an answer has, less those it has without these links."""
    with duckdb.connect() as connection:
        for table, rows in tables_beside(cli).items():
            connection.register(f"all_{table}", rows)
        counts: Counter[tuple[object, ...]] = Counter()
        for kept, sign in (("true", 1), (f"({condition}) IS NOT TRUE", -1)):
            connection.execute("CREATE OR REPLACE VIEW seeds AS SELECT * FROM all_seeds")
            text = f"CREATE OR REPLACE VIEW links AS SELECT * FROM all_links WHERE {kept}"
            connection.execute(text)
            for row in connection.execute(sql).fetchall():
                counts[row] += sign
    return Counter({row: count for row, count in counts.items() if count})

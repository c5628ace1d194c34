"""Scattered groups of a sorted table: many ranges asked in several parts are not worth it."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.app.preparing.prepared import prepare
from impctl.app.using.worth import Weighed, weighed
from impctl.app.workbench.settings import Settings
from impctl.app.workbench.workbench import open_workbench
from impctl.bench.layout import Order, layout_files
from impctl.tables.write.laid_out import create_laid_out_table
from tests.support.run_cli import Cli


def found(folder: Path, capsys: pytest.CaptureFixture[str], order: Order, column: str) -> Weighed:
    create_laid_out_table(str(folder / "t"), layout_files(40_000, 10_000, order, 20, 1))
    sql = f"SELECT a, SUM(b) AS s FROM t GROUP BY a HAVING AVG({column}) < 9000"
    file = folder / "w.yaml"
    file.write_text(
        f'version: 1\ntables: {{t: {{path: t}}}}\nqueries: {{q: {{sql: "{sql}"}}}}\nstore: st\n'
    )
    Cli(capsys, file).good("capture")
    with open_workbench(Settings(file)) as desk:
        store = desk.reading_store()
        stored = None if store is None else store.load("q")
        assert stored is not None
        prepared = prepare(desk, desk.workload.queries["q"])
        return weighed(desk.tables, prepared, stored.sketches, stored.versions)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "column", "is_used"),
    [
        (Order.SORTED, "q", False),
        (Order.RANDOM, "q", True),
        (Order.SORTED, "p", True),
        (Order.ZORDER, "p", True),
    ],
)
def test_what_is_left_away(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    order: Order,
    column: str,
    is_used: bool,
) -> None:
    read = found(tmp_path, capsys, order, column)
    assert bool(read.pruned.filters) == is_used
    assert bool(read.left_away) != is_used

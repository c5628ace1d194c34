"""A sketch that is left away narrows nothing: its table is read whole, and so are its partners.

Where groups are scattered over a sorted table, many ranges asked in several parts are not worth it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.layout import Order, layout_files
from impctl.service import resolve
from impctl.service.context import open_workbench
from impctl.service.filters import filters_of
from impctl.service.prepare import prepare
from impctl.service.resolve import weighed
from impctl.service.settings import Settings
from impctl.tables.write.maintenance import create_laid_out_table
from tests.support.kept_workload import stored
from tests.support.run_cli import CliOf

FILES, ROWS = 20, 200

SQL = (
    "SELECT t.g, COUNT(u.y) AS n FROM t LEFT JOIN u ON t.k = u.k"
    " WHERE t.x > 0 GROUP BY t.g HAVING COUNT(*) > 2"
)


@pytest.mark.slow
def test_partners_are_those_of_what_is_read(
    cli_of: CliOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "_FILTERED", 2.0)
    # Keys ascend in both; the groups of the first file of `t` are rare ones that fail, and
    # so are some between those that pass in the others, which must be asked for their ranges.
    random = np.random.default_rng(1)
    t, u = [], []
    for number in range(FILES):
        keys = np.arange(number * ROWS, (number + 1) * ROWS)
        often = random.integers(1, 100, ROWS) * 1000
        rare = random.integers(1000, 100_000, ROWS)
        g = -keys - 1 if number == 0 else np.where(random.random(ROWS) < 0.97, often, rare)
        t.append(pa.table({"k": keys, "g": g, "x": np.ones(ROWS, np.int64)}))
        u.append(pa.table({"k": keys, "y": keys}))
    create_laid_out_table(str(tmp_path / "t"), t)
    create_laid_out_table(str(tmp_path / "u"), u)
    cli = cli_of(
        "version: 1\ntables: {t: {path: t}, u: {path: u}}\n"
        f'queries: {{q: {{sql: "{SQL}", sketch: {{t: g}}}}}}\nstore: st\n'
    ).captured()
    with open_workbench(Settings(cli.workload)) as desk:
        held = stored(tmp_path, "q", "st")
        prepared = prepare(desk, desk.workload.queries["q"])
        by_sketch = filters_of(desk.tables, prepared, held.sketches, held.versions)
        assert {name: len(files) for name, files in by_sketch.files.items()} == {"t": 19, "u": 19}
        read = weighed(desk.tables, prepared, held.sketches, held.versions)
    assert list(read.left_away) == ["t"]
    assert {name: len(files) for name, files in read.pruned.files.items()} == {"t": 20, "u": 20}
    assert read.pruned.filters == {}


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
    cli_of: CliOf, tmp_path: Path, order: Order, column: str, is_used: bool
) -> None:
    create_laid_out_table(str(tmp_path / "t"), layout_files(40_000, 10_000, order, 20, 1))
    sql = f"SELECT a, SUM(b) AS s FROM t GROUP BY a HAVING AVG({column}) < 9000"
    cli = cli_of(
        f'version: 1\ntables: {{t: {{path: t}}}}\nqueries: {{q: {{sql: "{sql}"}}}}\nstore: st\n'
    ).captured()
    with open_workbench(Settings(cli.workload)) as desk:
        held = stored(tmp_path, "q", "st")
        prepared = prepare(desk, desk.workload.queries["q"])
        read = weighed(desk.tables, prepared, held.sketches, held.versions)
    assert bool(read.pruned.filters) == is_used
    assert bool(read.left_away) != is_used

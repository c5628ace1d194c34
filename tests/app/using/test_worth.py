"""A sketch is used where it saves more than its filter costs; the answer is the same either way."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.run_cli import Cli

pytestmark = pytest.mark.spark

FILES, ROWS = 10, 2_000

WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {day: {fragments: 10}, g: {fragments: 100}}}
queries:
  clustered:
    sql: SELECT day, SUM(x) s FROM t GROUP BY day HAVING SUM(x) > 3000
    sketch: {t: day}
  scattered:
    sql: SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > 100
    sketch: {t: g}
store: .impctl
spark: {master: "local[2]"}
"""


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """A file a day, of which the last has more; every file has every g, and most of these pass."""
    for day in range(FILES):
        rows = {
            "day": [day] * ROWS,
            "g": [at % 100 for at in range(ROWS)],
            "x": [2 if day == FILES - 1 else at % 100 > 10 for at in range(ROWS)],
        }
        table = pa.table({name: pa.array(map(int, values)) for name, values in rows.items()})
        write_deltalake(str(tmp_path / "t"), table, mode="append")
    file = tmp_path / "w.yaml"
    file.write_text(WORKLOAD)
    return Cli(capsys, file)


def test_what_is_left_away(cli: Cli) -> None:
    cli.good("capture")
    (clustered,) = cli.good("query", "--query", "clustered", "--sketch", "auto").results
    assert (clustered["files_kept"], clustered["left_away"]) == (1, {})
    found = {}
    for use in ("auto", "always", "never"):
        (result,) = cli.good("query", "--query", "scattered", "--sketch", use).results
        reason = result["left_away"].get("t", "")
        assert ("it would read 10 of 10 files" in reason) == (use == "auto"), reason
        found[use] = sorted(result["rows"])
    assert found["auto"] == found["always"] == found["never"]
    assert found["auto"]


def test_without_a_sketch_nothing_is_captured(cli: Cli) -> None:
    (result,) = cli.good("query", "--query", "clustered", "--sketch", "never").results
    assert (result["action"], result["files_kept"]) == ("not_used", FILES)
    assert cli("status").results[0]["versions"] == {}


def test_conditions_leave_files_out_without_a_sketch(cli: Cli) -> None:
    sql = "SELECT g FROM t WHERE day >= 9 AND x > 1"
    (result,) = cli.good("query", "--sql", sql, "--sketch", "never").results
    assert (result["files_kept"], result["row_count"]) == (1, ROWS)

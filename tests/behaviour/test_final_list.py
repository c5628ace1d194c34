"""A result is materialized only if the engine computes its final SELECT list and order exactly."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli

ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "d": pa.array([1.5, None]),
        "ts": pa.array([1_774_744_200_000_000, None], pa.timestamp("us", "UTC")),
        "s": ["a", None],
    }
)


def over(folder: Path, capsys: Capsys, sql: str) -> Cli:
    create_table(str(folder / "t"), ROWS)
    return Cli.over(
        capsys,
        folder,
        "version: 1\ntables: {t: {path: t}}\npartitions: {t: {id: {boundaries: [2]}}}\n"
        "spark: {conf: {spark.sql.session.timeZone: Europe/Berlin}}\n"
        f'queries: {{q: {{answer: true, sql: "{sql}"}}}}\n',
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, hour(ts) AS v FROM t WHERE id < 9",
        "SELECT id, CAST(ts AS DATE) AS v FROM t WHERE id < 9",
        "SELECT id, CAST(d AS STRING) AS v FROM t WHERE id < 9",
        "SELECT id, ascii(s) AS v FROM t WHERE id < 9",
        "SELECT id, id LIKE '1%' AS v FROM t WHERE id < 9",
        "SELECT id FROM t WHERE id < 9 ORDER BY CAST(d AS STRING)",
        "SELECT id, CASE WHEN hour(ts) > 1 THEN 1 END AS v FROM t WHERE id < 9",
        "SELECT s, CAST(MAX(d) AS STRING) AS v FROM t GROUP BY s",
    ],
)
def test_what_only_spark_computes_is_not_materialized(
    tmp_path: Path, capsys: Capsys, sql: str
) -> None:
    cli = over(tmp_path, capsys, sql)
    answer = cli.one("check")["answer"]
    assert not answer["kept"]
    assert "the engine does not support" in answer["reason"]
    cli.good("capture")
    assert cli("query", "--by", "state").refusal == (2, "answer_not_kept")
    assert cli("query", "--by", "engine").refusal == (3, "engine_cannot")


def test_what_the_engine_computes_is(tmp_path: Path, capsys: Capsys) -> None:
    sql = "SELECT id, d * 2 AS v, upper(s) AS u FROM t WHERE id < 9 ORDER BY d DESC"
    cli = over(tmp_path, capsys, sql).captured()
    rows = [[1, 3.0, "A"], [2, None, None]]
    for by in ("state", "engine"):
        assert cli.one("query", "--by", by)["rows"] == rows

"""When rows expire: the edge of what is live, and when the next one goes.

Law: looked up at random, `next_expiry` never comes after the first row that expires, and, as far as
statistics tell it exactly, at that very second.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.data.schema import DATE, TIMESTAMP
from impctl.errors import TableError
from impctl.service.context import open_workbench
from impctl.service.expiry import least_above, live_rows, next_expiry
from impctl.service.settings import Settings
from impctl.tables import rows
from impctl.tables.source import open_source
from impctl.tables.write.maintenance import create_table
from tests.support.random_cases import random_seeds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
"""In Berlin the hour from two to three is left out half an hour later."""


def table_of(times: list[datetime | None]) -> pa.Table:
    return pa.table({"at": pa.array(times, pa.timestamp("us", tz="UTC")), "x": range(len(times))})


def micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


@pytest.mark.slow
@random_seeds(2, 5, 8)
def test_the_least_above_an_edge(tmp_path: Path, seed: int) -> None:
    random, path = Random(seed), str(tmp_path / "t")
    seen: list[datetime] = []
    for number in range(6):
        offsets = [random.randint(-5_000_000, 5_000_000) for _ in range(random.randint(1, 4))]
        times = [
            None if random.random() < 0.2 else NOW + timedelta(microseconds=by) for by in offsets
        ]
        if number == 0:
            create_table(path, table_of(times))
        elif number == 1:
            # A file without statistics.
            config = {"delta.dataSkippingNumIndexedCols": "0"}
            DeltaTable(path).alter.set_table_properties(config)
            write_deltalake(path, table_of(times), mode="append")
            config = {"delta.dataSkippingNumIndexedCols": "32"}
            DeltaTable(path).alter.set_table_properties(config)
        else:
            write_deltalake(path, table_of(times), mode="append")
        seen += [at for at in times if at is not None]
    snapshot = open_source("t", path).snapshot()
    for by in (-6_000_000, -3_000_000, -1, 0, 1, 2_500_000, 6_000_000):
        edge = micros(NOW) + by
        later = [micros(at) for at in seen if micros(at) > edge]
        result = least_above(snapshot, "at", edge)
        if not later:
            assert result is None
            continue
        assert result is not None
        # Statistics are cut to milliseconds, and taken for one more.
        assert edge < result <= min(later) < result + 2_000


def test_files_with_live_rows_alone_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t")
    create_table(path, table_of([NOW, NOW + timedelta(seconds=9)]))
    for seconds in (20, 30, 40):
        more = [NOW + timedelta(seconds=seconds), NOW + timedelta(seconds=seconds + 9)]
        write_deltalake(path, table_of(more), mode="append")
    read: list[int] = []
    batches = rows.read_batches

    def counted(snapshot: Any, columns: Any, files: Any) -> Any:
        read.append(len(files))
        return batches(snapshot, columns, files)

    monkeypatch.setattr(rows, "read_batches", counted)
    snapshot = open_source("t", path).snapshot()
    result = least_above(snapshot, "at", micros(NOW) - 5_000_000)
    assert result is not None
    assert micros(NOW) - 2_000 < result <= micros(NOW)
    assert read == []
    assert least_above(snapshot, "at", micros(NOW) + 5_000_000) == micros(NOW) + 9_000_000
    assert read == [1]
    # Where all of a file expired, the next one begins.
    result = least_above(snapshot, "at", micros(NOW) + 9_500_000)
    assert result is not None
    assert micros(NOW) + 20_000_000 - 2_000 < result <= micros(NOW) + 20_000_000
    assert read == [1]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "+05:30"])
def test_days_expire_at_their_midnight(tmp_path: Path, zone: str) -> None:
    from impctl.sql.parameters import zone_of

    days = [date(2026, 3, 25) + timedelta(days=by) for by in range(6)]
    create_table(str(tmp_path / "t"), pa.table({"day": pa.array([None, *days], pa.date32())}))
    (tmp_path / "w.yaml").write_text(
        "version: 1\ntables: {t: {path: t, expiry: {column: day, after: 36h}}}\n"
        "queries: {q: {sql: SELECT day FROM t}}\n"
        f"spark: {{conf: {{spark.sql.session.timeZone: '{zone}'}}}}\n"
    )
    midnights = [
        datetime(day.year, day.month, day.day, tzinfo=zone_of(zone)).astimezone(UTC) for day in days
    ]
    with open_workbench(Settings(tmp_path / "w.yaml")) as desk:
        spec = desk.workload.tables["t"].expiry
        assert spec is not None
        for hours in range(-10, 60):
            now = NOW + timedelta(hours=hours)
            live = live_rows(spec, desk.tables.snapshot("t"), now, zone)
            assert live.later_than.type == DATE
            assert isinstance(live.later_than.value, int)
            edge = EPOCH.date() + timedelta(days=live.later_than.value)
            kept = [day for day in days if day > edge]
            own = [m for m in midnights if m > now - timedelta(hours=36)]
            assert len(kept) == len(own), (now, zone)
            told = next_expiry(desk, {"t": 0}, now.isoformat())
            assert told == (min(own) + timedelta(hours=36)).isoformat() if own else "never"


def test_the_edge_is_exact_to_the_microsecond(tmp_path: Path) -> None:
    create_table(str(tmp_path / "t"), table_of([NOW]))
    text = "version: 1\ntables: {t: {path: t, expiry: {column: at, after: 1 hour}}}\n"
    (tmp_path / "w.yaml").write_text(text + "queries: {q: {sql: SELECT x FROM t}}\n")
    with open_workbench(Settings(tmp_path / "w.yaml")) as desk:
        spec = desk.workload.tables["t"].expiry
        assert spec is not None
        live = live_rows(spec, desk.tables.snapshot("t"), NOW, "Europe/Berlin")
    assert live.later_than.type == TIMESTAMP
    assert live.later_than.value == micros(NOW) - 3_600_000_000


def test_where_nobody_can_look_every_run_has_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_table(str(tmp_path / "t"), table_of([NOW, NOW - timedelta(hours=2)]))
    text = "version: 1\ntables: {t: {path: t, expiry: {column: at, after: 1 hour}}}\n"
    (tmp_path / "w.yaml").write_text(text + "queries: {q: {sql: SELECT x FROM t}}\n")
    with open_workbench(Settings(tmp_path / "w.yaml")) as desk:
        assert next_expiry(desk, {"t": 0}, NOW.isoformat()) == "2026-03-29T01:30:00+00:00"
    unread = Mock(side_effect=TableError("only Spark reads this"))
    monkeypatch.setattr(rows, "read_batches", unread)
    with open_workbench(Settings(tmp_path / "w.yaml")) as desk:
        assert next_expiry(desk, {"t": 0}, NOW.isoformat()) == ""

"""An answer with every type that Spark gives through Arrow, and every value that is awkward."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa

NOON = datetime(2024, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)
MICROS_IN_YEAR_12024 = 317_276_222_400_000_000
FAR_DAY = 3_672_178


def every_type() -> pa.Table:
    """Three rows; the last one is NULL throughout."""
    columns = {
        "n": pa.array([1, -(2**63), None], pa.int64()),
        "x": pa.array([0.1, float("nan"), None], pa.float64()),
        "f": pa.array([0.1, float("-inf"), None], pa.float32()),
        "dec": pa.array([Decimal("0E-18"), Decimal("12345678901234567890.5"), None]).cast(
            pa.decimal128(38, 18)
        ),
        "s": pa.array(["", 'a,"b\nc', None]),
        "t": pa.array([True, False, None]),
        "d": pa.array([date(2024, 1, 31), date(1, 1, 1), None], pa.date32()),
        "far": pa.array([0, FAR_DAY, None], pa.int32()).cast(pa.date32()),
        "at": pa.array([NOON, NOON.replace(microsecond=0), None], pa.timestamp("us", "UTC")),
        "far_at": pa.array([0, MICROS_IN_YEAR_12024, None]).cast(pa.timestamp("us", "UTC")),
        "local": pa.array([datetime(2024, 1, 31, 12), datetime(1, 1, 1), None], pa.timestamp("us")),
        "clock": pa.array([time(1, 2, 3), time(1, 2, 3, 4), None], pa.time64("us")),
        "took": pa.array(
            [timedelta(days=1, seconds=7384, microseconds=500_000), timedelta(seconds=-1), None],
            pa.duration("us"),
        ),
        "bin": pa.array([b"", b"\x00\xff", None], pa.binary()),
        "list": pa.array([[1.5, None], [float("inf")], None], pa.list_(pa.float64())),
        "struct": pa.array(
            [{"k": Decimal("1.50"), "v": [b"x"]}, {"k": None, "v": None}, None],
            pa.struct([("k", pa.decimal128(5, 2)), ("v", pa.list_(pa.binary()))]),
        ),
        "map": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "nothing": pa.nulls(3),
    }
    return pa.table(columns)


ROWS = [
    {
        "n": 1,
        "x": 0.1,
        "f": 0.10000000149011612,
        "dec": "0.000000000000000000",
        "s": "",
        "t": True,
        "d": "2024-01-31",
        "far": "1970-01-01",
        "at": "2024-01-31T12:00:00.500000+00:00",
        "far_at": "1970-01-01T00:00:00+00:00",
        "local": "2024-01-31T12:00:00",
        "clock": "01:02:03",
        "took": "P1DT7384.5S",
        "bin": "",
        "list": [1.5, None],
        "struct": {"k": "1.50", "v": ["78"]},
        "map": [["a", 1]],
        "nothing": None,
    },
    {
        "n": -(2**63),
        "x": "NaN",
        "f": "-Infinity",
        "dec": "12345678901234567890.500000000000000000",
        "s": 'a,"b\nc',
        "t": False,
        "d": "0001-01-01",
        "far": "+12024-01-31",
        "at": "2024-01-31T12:00:00+00:00",
        "far_at": "+12024-01-31T12:00:00+00:00",
        "local": "0001-01-01T00:00:00",
        "clock": "01:02:03.000004",
        "took": "-P0DT1S",
        "bin": "00ff",
        "list": ["Infinity"],
        "struct": {"k": None, "v": None},
        "map": [],
        "nothing": None,
    },
    dict.fromkeys(every_type().column_names),
]
"""The same rows as JSON has them."""

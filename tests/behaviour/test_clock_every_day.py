"""A month's window on every one of so many days: Spark's recapture and Spark's answer, each day.

By hand: `IMPCTL_DAYS=90` says how many days; `test_clock_days` asks Spark on every fifteenth only.
Per day and query Spark captures anew and answers with and without the sketch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.test_clock_days import Days, lived

COUNT = int(os.environ.get("IMPCTL_DAYS", "0"))

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(COUNT == 0, reason="IMPCTL_DAYS says no number of days"),
]


def test_spark_agrees_on_every_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    done = lived(Days(tmp_path, capsys, monkeypatch), COUNT, 1)
    assert done.asked == COUNT

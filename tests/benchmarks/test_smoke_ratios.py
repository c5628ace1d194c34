"""The suite `smoke` against its committed baseline: nothing may become half as quick."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import main
from impctl.bench.record import record_from_json
from tests.benchmarks.smoke import falls, read_baseline
from tests.benchmarks.smoke_baseline import BASELINE


# A busy machine may take several times as long as a quiet one; what is asked for is ratios.
@pytest.mark.timeout(1200)
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.spark
def test_no_ratio_fell_far(tmp_path: Path, spark: object) -> None:
    out = tmp_path / "smoke.json"
    assert main(["smoke", "--data", str(tmp_path / "data"), "--out", str(out), "--quiet"]) == 0
    record = record_from_json(out.read_text(encoding="utf-8"), str(out))
    assert not falls(record, read_baseline(BASELINE))

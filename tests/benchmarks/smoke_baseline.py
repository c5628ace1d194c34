"""Writes the baseline of the smoke test from the records named on the command line."""

from __future__ import annotations

import sys
from pathlib import Path

from impctl.bench.record import record_from_json
from tests.benchmarks.smoke import ratios_of, write_baseline

BASELINE = Path(__file__).parents[2] / "benchmarks" / "suites" / "smoke-baseline.json"

if __name__ == "__main__":
    texts = {name: Path(name).read_text(encoding="utf-8") for name in sys.argv[1:]}
    records = [record_from_json(text, name) for name, text in texts.items()]
    write_baseline(BASELINE, ratios_of(records))

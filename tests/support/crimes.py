"""The moments of the crimes file beside the project; where it is not, the test is skipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

_FILE = Path(__file__).resolve().parents[3] / "shared" / "data" / "crimes-2022.parquet"


def crime_moments() -> npt.NDArray[np.float64]:
    """Seconds since 1970, in order."""
    if not _FILE.is_file():
        pytest.skip(f"{_FILE} is not there")
    column = pq.read_table(_FILE, columns=["Date"])["Date"].to_numpy()
    result: npt.NDArray[np.float64] = np.sort(column.astype("datetime64[s]").astype(np.float64))
    return result

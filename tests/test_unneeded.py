"""pandas is hidden from a command and restored for Spark."""

from __future__ import annotations

import pytest

from tests.support.run_cli import python

pytest.importorskip("pandas")


def printed(code: str) -> str:
    result = python("-c", f"import sys\n{code}")
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_arrow_works_with_pandas_hidden() -> None:
    code = """
from impctl.unneeded import disable_pandas as hide_pandas
hide_pandas(); hide_pandas()
import numpy as np, pyarrow as pa
assert pa.array([1, 2]).to_numpy().tolist() == [1, 2]
assert pa.table({"a": np.arange(2)}).column("a").to_pylist() == [0, 1]
print("pandas" in sys.modules)
"""
    assert printed(code) == "False\n"


def test_arrow_loads_pandas_otherwise() -> None:
    """Otherwise hiding would be unnecessary."""
    assert (
        printed("import pyarrow as pa; pa.array([1]); print('pandas' in sys.modules)") == "True\n"
    )


def test_pandas_can_be_imported_when_restored() -> None:
    code = """
from importlib.util import find_spec
from impctl.unneeded import disable_pandas as hide_pandas, enable_pandas as show_pandas
before = list(sys.meta_path)
hide_pandas()
try:
    import pandas
except ImportError as error:
    print(error.name)
show_pandas(); show_pandas()
assert sys.meta_path == before
import pandas
print(find_spec("pandas") is not None)
"""
    assert printed(code) == "pandas\nTrue\n"


def test_programs_with_impctl_keep_pandas() -> None:
    code = "import impctl; impctl.open; import pandas; print(pandas.__name__)"
    assert printed(code) == "pandas\n"

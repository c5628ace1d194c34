"""Values of many expressions by few queries: Spark plans longer than it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

_TOGETHER = 60


def asked(view: Any, texts: Sequence[str]) -> list[pa.ChunkedArray | Exception]:
    """A column for each expression, or the exception if Spark refuses it or fails on a row."""
    lots = (texts[start : start + _TOGETHER] for start in range(0, len(texts), _TOGETHER))
    return [column for lot in lots for column in _halved(view, lot)]


def _halved(view: Any, texts: Sequence[str]) -> list[pa.ChunkedArray | Exception]:
    from pyspark.errors import PySparkException

    try:
        columns = [f"{sql} AS x{index}" for index, sql in enumerate(texts)]
        return list(view.selectExpr(*columns).toArrow().columns)
    except PySparkException as error:
        if len(texts) == 1:
            return [error]
    half = len(texts) // 2
    return _halved(view, texts[:half]) + _halved(view, texts[half:])

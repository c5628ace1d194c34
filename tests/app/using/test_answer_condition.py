"""The hint of a condition that cannot be read is one that can."""

from __future__ import annotations

import pytest

from impctl.app.using.answer_condition import condition_on
from impctl.data.schema import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    SqlType,
    decimal,
)
from impctl.errors import UsageError
from impctl.plan.nodes import Attribute

KINDS = (LONG, DOUBLE, decimal(10, 2), STRING, BOOLEAN, DATE, TIMESTAMP, TIMESTAMP_NTZ, BINARY)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_hint_fits_the_column(kind: SqlType) -> None:
    columns = [Attribute("q.c", "c", kind)]
    with pytest.raises(UsageError) as caught:
        condition_on(columns, "c >", "UTC")
    example = str(caught.value.hint).split("such as `")[1].split("`")[0]
    assert condition_on(columns, example, "UTC") is not None

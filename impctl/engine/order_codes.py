"""Sort keys as integers: weakly ordered codes to search by, and exact ranks among a few rows.

Law: a row that sorts before another has a code at most as great; rows that tie have equal codes,
and so may others, which the exact ranks then tell apart. Order as Spark's: NaN is the greatest
double, -0.0 equals 0.0, strings by their UTF-8 bytes, NULL where the key says.
Out of scope: how many rows are kept (`engine.operators.top`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from impctl.data.schema import DOUBLE
from impctl.data.vector import INT64_MAX, INT64_MIN, Ints, Vector
from impctl.engine.extremes import has_rank, ranks_of
from impctl.types import AttributeId
from impctl.values import dataclass

_PREFIX = 8


@dataclass(frozen=True, slots=True)
class OrderKey:
    """One ORDER BY term: a column, its direction and the place of NULL."""

    column: AttributeId
    descending: bool
    nulls_first: bool


def codes_of(vector: Vector, key: OrderKey) -> Ints:
    """A 64-bit code per row in the order of one key; shape (rows,)."""
    if vector.is_textual:
        codes = _prefixes(vector.values)
    elif has_rank(vector.type):
        codes = ranks_of(vector, reverse=False)
    else:
        # Wide decimals: rounding to double keeps the order, and merges neighbours at most.
        codes = ranks_of(Vector(DOUBLE, vector.values.astype(np.float64)), reverse=False)
    codes = ~codes if key.descending else codes
    # The ends are for NULL; values there share a code with their neighbours.
    codes = np.clip(codes, INT64_MIN + 1, INT64_MAX - 1)
    if vector.valid is None:
        return codes
    return np.where(vector.valid, codes, INT64_MIN if key.nulls_first else INT64_MAX)


def _prefixes(values: pa.Array) -> Ints:
    """The first eight bytes of each text as a number in the order of the bytes."""
    texts = values.cast(pa.large_binary()).fill_null(b"").to_pylist()
    padded = b"".join(text[:_PREFIX].ljust(_PREFIX, b"\0") for text in texts)
    words = np.frombuffer(padded, dtype=">u8").astype(np.uint64)
    return (words ^ np.uint64(1 << 63)).view(np.int64)


def exact_ranks(vector: Vector, key: OrderKey) -> Ints:
    """Ranks by one key among these rows: equal where and only where the values tie."""
    if vector.is_textual:
        ranks = _text_ranks(vector.values)
    elif has_rank(vector.type):
        ranks = ranks_of(vector, reverse=False)
        ranks = np.unique(ranks, return_inverse=True)[1].astype(np.int64)
    else:
        known = vector.to_arrow().to_pylist()
        order = {value: at for at, value in enumerate(sorted({v for v in known if v is not None}))}
        ranks = np.array([order.get(value, 0) for value in known], dtype=np.int64)
    ranks = -ranks if key.descending else ranks
    if vector.valid is None:
        return ranks
    bound = len(ranks) + 1
    return np.where(vector.valid, ranks, -bound if key.nulls_first else bound)


def _text_ranks(values: pa.Array) -> Ints:
    """Ranks in the order of the bytes; of NULL any one."""
    result = values.cast(pa.large_binary()).dictionary_encode()
    order = pc.sort_indices(result.dictionary).to_numpy()
    ranks = np.zeros(max(len(order), 1), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    taken: Ints = ranks[result.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    return taken

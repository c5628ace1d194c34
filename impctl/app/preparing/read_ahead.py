"""Rows that are read while those before them are worked on.

Law: the same items in the same order; one is made ahead, no more, so memory is that of two.
Out of scope: what is read (whoever fills a circuit), how (`tables.rows`).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


def one_ahead(items: Iterator[T], reader: Executor) -> Iterator[T]:
    """The items, the next one being made by `reader` while one is worked on."""
    following = reader.submit(next, items, None)
    while (item := following.result()) is not None:
        following = reader.submit(next, items, None)
        yield item

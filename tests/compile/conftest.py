"""Absorption has a small cache in these tests."""

from tests.support.diagrams import small_cache

__all__ = ["small_cache"]

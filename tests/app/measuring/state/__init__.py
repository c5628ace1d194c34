"""Tests of what is measured of a query's state."""

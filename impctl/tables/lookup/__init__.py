"""Rows of a table that have one of some values, found in its files without a JVM."""

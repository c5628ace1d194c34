"""Partitions, ranges and sketches: rows to range ids, sets of ids, their intervals, and coverage."""

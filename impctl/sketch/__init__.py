"""Partitions, ranges and sketches: range ids of rows, sets of ids, intervals and coverage."""

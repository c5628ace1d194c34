"""Partitions, fragments and sketches, and how they relate.

The one room that knows what a fragment id means: rows to fragments, sets of fragments, the
intervals they stand for, and whether one sketch covers another.
"""

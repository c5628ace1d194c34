"""Joins that are trees against joins that are joined: streams of changes, ways, what is asked anew.

Law: everything happens in memory and in one process, on the same rows for all; sketches are
compared before anything is timed. Out of scope: the measure (`measures.tree_cost`).
"""

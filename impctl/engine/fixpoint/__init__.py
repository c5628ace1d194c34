"""Recursive rows: what a fixpoint remembers of the rows it derived (`ranked_rows`).

The loop that derives them is an operator (`operators.fixpoint`).
"""

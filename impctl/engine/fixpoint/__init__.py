"""Recursive rows: what a fixpoint remembers of the rows it derived (`ranked_rows`, `absorption`).

The loop that derives them is an operator (`operators.fixpoint`).
"""

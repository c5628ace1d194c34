"""Recursive rows: what a fixpoint remembers of the rows it derived (`ranked_rows`), and of the best
of each group alone (`best_rows`).

The loops that derive them are operators (`operators.fixpoint`, `operators.best_fixpoint`).
"""

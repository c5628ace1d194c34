"""From the answer back to the rows of fixpoints that it stems from.

Out of scope: the operators (`engine.fixpoint.lineage`), when this is enough (`safety`).
"""

"""From the answer back to the rows of fixpoints that it stems from.

Out of scope: the operators (`engine.operators.backward`), when this is enough (`safety`).
"""

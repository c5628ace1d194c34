"""Recursive rows: the state of a fixpoint, and how its rows are inserted and deleted.

`fixpoint` has the operators. `rows` is the state, and what a step changes in it. `frontier` follows
a step by its operators; where the step is one join, `single_join` looks up the table's rows
instead, and `small_frontier` does so row by row. Where only the best rows of a group are kept,
`best_values` holds them, and `relaxation` computes values that are integers. `absorption` keeps how
each row is derived instead of a rank.
"""

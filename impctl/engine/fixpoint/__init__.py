"""Recursive rows: what a fixpoint remembers of the rows it derived, and how they come and go.

`ranked_rows` is what is kept, `touched_rows` what a step has made of some of it, `moves` what comes
of a front of rows; by a step's operators, or, where the step is one join (`plain_step`), without
them: `joined_moves`, and of few rows `thin_fronts`. The loop over fronts is an operator
(`operators.fixpoint`). Of the best rows of each
group alone `best_rows` is what is kept. `absorption` keeps what derives each row, instead of how
much does.
"""

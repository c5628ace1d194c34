"""Recursive rows: what a fixpoint remembers of the rows it derived, and how they come and go.

`ranked_rows` is what is kept, `touched_rows` what a step has made of some of it, `moves` what comes
of a front of rows; by a step's operators, or, where the step is one join (`plain_step`), without
them: `joined_moves`, and of few rows `thin_fronts`. The loop over fronts is an operator
(`operators.fixpoint`). What is told of derivations beside rows: one of each row (`choices`), or
heads with bodies (`heads_and_bodies`), for which rows have numbers (`numbered_rows`). Of the best
rows of each group alone `best_rows` is what is kept, and `touched_groups` what a step has made of
it; where rows are a key with a value (`valued_step`) `settling` and `one_by_one` find it over
numbers, and `valued_changes` keeps it. Of UNION ALL rows have levels (`levelled_rows`).
`absorption` keeps what derives each row, by `row_numbers`, instead of how much does.
"""

"""What is stored of a query's state, measured: rows held back, and ways to choose.

Law: everything happens on scratch copies; every way sees the same changes, and its sketches are
compared with recapture. Out of scope: the measures (`measures.state_cost`, `state_processes`,
`state_deadlines`).
"""

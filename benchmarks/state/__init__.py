"""What is kept of a query's state, measured: tables held back in part, and ways to choose.

Law: everything happens on scratch copies; every way sees the same changes, and its sketches are
compared with recapture. Out of scope: the measures (`measures.state_cost`,
`state_phases`, `state_processes`, `state_deadlines`).
"""

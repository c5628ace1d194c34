"""Changes that others make to tables and files between two runs: detected, handled by policy.

Law: after every action, under any of the four policies, the sketch covers the ranges that plain
Python computes from the table itself (`workspace.check_sound`).
Out of scope: reading unusual tables (`tests/tables`), the store alone (`tests/store`).
"""

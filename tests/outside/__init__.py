"""What others do to tables and files between two runs: detected, answered by policy, never wrong.

Law: every case runs under all four policies from one captured store (`place.Place`), and after
every action the sketch covers what plain Python finds in the table itself (`place`).
Out of scope: reading odd tables (`tests/tables`), the store alone (`tests/store`).
"""

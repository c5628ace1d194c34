"""The workload file: YAML text in, frozen models out.

Every problem of a file is reported at once, each with its line and column. This room never opens
a table, never reads SQL and never looks at the environment on its own: variables are handed in.
"""

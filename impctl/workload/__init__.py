"""The workload file: YAML text in, frozen models out.

Every problem of a file is reported at once, each with its line and column. This package never opens
a table, never reads SQL and never reads the environment: variables are passed in.
"""

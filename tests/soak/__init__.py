"""A soak: thousands of random operations on one store, every answer held against the tables.

`place` has tables, queries and changes; `writer` commits them in another process; `children` are
processes of impctl that may be killed; `driver` knows what is right, and draws operations.
"""

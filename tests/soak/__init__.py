"""A soak: thousands of random operations on one store, with every result checked.

`place` has tables, queries and changes; `writer` commits them in another process; `children` runs
impctl in processes that may be killed; `driver` draws operations and checks results.
"""

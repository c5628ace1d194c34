"""Which table rows an answer's row is derived from, by running the query once more.

Law: the result is about exactly the given rows; nothing is kept.
"""

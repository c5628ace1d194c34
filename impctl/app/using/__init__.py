"""A stored sketch used for a query that is asked, its own or another.

Law: the answer with the sketch is the answer without.
"""

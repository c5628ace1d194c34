"""Whether a query can use the sketch of another with different constants.

Law: says yes only where the rules prove it.
"""

"""Keep state within a budget of bytes.

Law: what is kept decides what changes cost, never a sketch.
"""

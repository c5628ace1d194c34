"""Keep state within a budget of bytes.

Law: stored state affects costs of changes, never a sketch.
"""

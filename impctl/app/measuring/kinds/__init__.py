"""One file per measure that a suite can ask for.

Law: each says what it times and against what.
"""

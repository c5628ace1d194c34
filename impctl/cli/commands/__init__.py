"""One command per file: its flags, its help, and the use case it stands for.

Law: a command does nothing when called; it returns a `Job`, which the boundary runs.
"""

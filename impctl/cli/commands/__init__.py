"""The commands: their options, their help, and the use case of each.

Law: a command does nothing when called; it returns a `Job`, which the boundary runs.
"""

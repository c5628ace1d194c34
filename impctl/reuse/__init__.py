"""Whose sketch may answer whom: one plan against another with other constants.

Law: says yes only where the rules prove it.
"""

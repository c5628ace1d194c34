"""A query's sketch and state: chosen, filled, written, taken up again.

Law: sketch, state and versions are stored together or not at all.
"""

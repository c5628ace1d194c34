"""Keys that joins look rows up by: how often they occur in a table's files.

No plan and no state is known here, and nothing is written.
"""

"""One query as it stands: read, with its facts, candidate ranges, attributes and values given.

Law: nothing here writes; what is judged is judged once and carried.
"""

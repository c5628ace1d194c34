"""What is measured of recursive queries: as peers would keep them, and as this engine does.

Law: all ways are given the same rows, and their answers are compared.
"""

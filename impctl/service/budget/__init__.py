"""State kept within a budget of bytes: what is worth keeping, chosen and carried out.

Law: what is kept decides what changes cost, never a sketch.
"""

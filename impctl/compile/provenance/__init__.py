"""Which rows of tables a row of an answer is derived from, told by running the query once more.

Law: whatever is told is told of the very rows that were given; nothing is kept. Out of scope:
sketches, which hold ranges and not rows (`compile.build`).
"""

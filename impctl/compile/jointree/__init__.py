"""Which joins have a tree, of what shape, and what it costs.

Law: relations merged into one bag are joined as every join is, so merging more than needed is
slower, never wrong. Pure: no state, and of sizes only the changed rows per table, which decide
between trees that are equally right.
"""

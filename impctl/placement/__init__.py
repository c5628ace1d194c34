"""Which pieces of a query's state are kept, read, rebuilt or bounded, under a budget of bytes.

Law: a choice decides what changes cost, never an answer. Pure: an operator here is its costs and
demands; no store, table or session is known.
"""

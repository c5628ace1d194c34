"""Which pieces of a query's state are kept, read, rebuilt or bounded, under a budget of bytes.

Pure: an operator here is what it costs and what it asks for, and no store, table or session is
known. `graph` has the values, `demands` what one operator costs and asks, `evaluated` what a choice
of modes costs in truth, `state_choice` the best choice for every budget at once, `many_queries` one
budget for several queries, `choice` the call from outside. Law: a choice decides what changes cost,
never an answer. Out of scope: carrying a choice out, and where its numbers come from (`graph_of`
makes a graph of a circuit, its sizes are given).
"""

"""Which pieces of a query's state are kept, read or bounded, under a budget of bytes. A choice
changes costs, never an answer. Pure: operators are costs; no store, table or session is known."""

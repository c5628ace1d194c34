"""Tables whose rows have many partners: graphs, social networks, keys of a given number of rows.

Law: equal arguments give equal rows. Out of scope: writing the tables (`tables`), queries.
"""

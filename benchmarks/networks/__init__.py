"""Networks to measure recursive queries on: links between nodes, and sensors on a field.

Law: equal arguments give equal rows. A table of links has a unique `id`, the nodes `src` and `dst`
from 0 on and a whole `cost` above 0.
Out of scope: writing the tables (`tables`), queries.
"""

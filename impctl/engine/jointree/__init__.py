"""Join trees: joined relations kept side by side, aggregates going up, decisions coming down.

A tree of nodes stands for a join whose rows are never written down (`spec`). Up it go counts and
sums per key (`way_up`), down it goes one bit per key, "somebody above wants you" (`way_down`); what
a node remembers is in `node`, what becomes of values in `values`. Two operators do this in a
circuit, `Tree` and `Live`. Joined rows are told to those alone who ask for them (`enumerated`,
`row_changes`). Choosing a tree is not for here.
"""

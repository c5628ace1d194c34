"""Join trees: joins kept as counts and sums per key, without joined rows.

`spec` describes a tree. Counts and sums per key go up (`bottom_up`), one bit per key, whether a
parent wants it, goes down (`top_down`); `node` is the state of a node, `values` computes with it.
`tree` has the two operators, `enumerate` the joined rows on request. `cyclic` joins cycles by
lookups.
"""

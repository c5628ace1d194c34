"""The plan's side of join trees: which joins have one, and of what shape.

`shape` has the frozen values, `shaping` makes them of a plan. Pure: no state, and of sizes only how
many rows of each table change, which decide between trees that are equally right. Law: whatever is
merged into one bag is joined as every join is, so merging more than needed is slower, never wrong.
Out of scope: what a tree remembers and how it is stepped (`engine.jointree`).
"""

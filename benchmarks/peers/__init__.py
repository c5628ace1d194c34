"""Recursive views kept by several peers, simulated in one process: who sends what to whom.

After "Recursive Computation of Regions and Connectivity in Networks" (Liu et al., 2008): rows lie
with the peer of their first column, channels are FIFO, and all that crosses peers is counted.
Law: after every step, when no message is on its way, the rows are those of the least fixpoint.
Out of scope: the product's own engine, which is one process and needs none of this.
"""

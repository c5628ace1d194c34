"""Join trees compared with other systems that maintain results, and with recomputing them.

Run a `joins_in_*`, `recompute_in_*` or `recapture_in_*` by `python -m`; each says what is missing
if its system is not installed. A system that maintains results runs in its own process (`pairs`),
with an interpreter or jars given on the command line, so that it is never installed beside impctl.

All results are compared by value before the first step and after each; a difference ends the run
with exit code 1. Both sides get the same rows and take turns. The suite `trees` measures the index
join, which needs no other system.
"""

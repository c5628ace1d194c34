"""Join trees beside systems that keep answers of their own, and beside asking anew.

Each `joins_in_*`, `recompute_in_*` and `recapture_in_*` is run by hand, by `python -m`, and says
what is missing where its system is not there. A rival that keeps answers runs in a process of its
own (`pairs`), with an interpreter or jars that its module is told of, so that nothing of it is
installed beside impctl.

Law: answers are compared first and after every step, by value; a difference ends the run with 1.
Both sides have the same rows and take turns. Out of scope: the suite `trees`, which has the index
join and needs no rival.
"""

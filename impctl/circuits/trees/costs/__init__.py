"""What a step and a state cost as an index join and as a tree, by the keys of the tables.

No row is read here and no state is known: fan-outs are asked for, and a guess is never made.
"""

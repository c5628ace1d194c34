"""What a query's state tells of derivations, where its recursion is kept by absorption.

Law: told is what is told without such a state, of the same versions; no table is read.
"""

"""Plan rewrites, and the order in which they run.

Law: a rule is total, keeps the bag of rows a plan yields on every database, and never changes the
root's attributes (ids, names, order).
"""

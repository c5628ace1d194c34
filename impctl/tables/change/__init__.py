"""What changed in a table between two versions, and what is still to come.

Law: the change read is the difference of the two snapshots as bags, or it is refused.
"""

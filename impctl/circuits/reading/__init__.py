"""Rows that a circuit does not keep, read anew from the tables.

Law: what is read is what the flow they are of has seen in all, or at least of the keys asked for.
"""

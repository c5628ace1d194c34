"""Whether a query can use a sketch on an attribute, and what its capture needs (docs/soundness.md).

Law: says yes only where the rules prove it.
"""

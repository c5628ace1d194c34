"""May a query be sketched on an attribute, and what must its capture add (docs/soundness.md)?

Law: says yes only where the rules prove it.
"""

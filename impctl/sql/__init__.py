"""SQL text to plans.

Law: what is not understood is refused with its place, never read as something similar.
"""

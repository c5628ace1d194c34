"""SQL text being read: everything that sees a parser's tree.

Law: what is not understood is refused with its place, never read as something near it.
"""

"""Results as text or JSON: one method per kind of result.

Law: results to stdout, everything else to stderr; text of users never reaches a terminal raw.
"""

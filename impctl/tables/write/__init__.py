"""The one place that changes a table.

Law: nothing is committed that was not checked.
"""

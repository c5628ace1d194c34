"""The first workload file, and the demo's tables.

Law: what is written passes `check`.
"""

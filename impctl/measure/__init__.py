"""The use cases under a stopwatch: figures of a workload, and what they are measured on.

Law: an answer is checked before it is timed.
"""

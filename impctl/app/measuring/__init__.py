"""The use cases under a stopwatch: suites of figures and what they are measured on.

Law: an answer is checked before it is timed.
"""

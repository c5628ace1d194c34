"""Suites: figures of a suite file measured one after another, each by its measure.

Out of scope: what a suite file says (`workload`), what a record is and how it looks (`bench`).
"""

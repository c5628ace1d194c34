"""Sketches carried forward: what changed, what to do about it, doing it, telling it.

Law: decided in one place, then run or only explained.
"""

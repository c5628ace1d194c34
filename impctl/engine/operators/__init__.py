"""The operators of the engine, one per file; each docstring states the identity it maintains."""

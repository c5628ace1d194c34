"""Joins in a circle by look-ups over rows: what is kept, and how partial rows grow.

`spec` says which inputs there are and by what they are asked, `stores` keeps their rows, `growth`
extends changed rows to joined ones. The operator `probe` does this in a circuit. Which joins are
probed is not for here.
"""

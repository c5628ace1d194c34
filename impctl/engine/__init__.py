"""Circuits of operators over signed rows, and the state that operators keep between two batches.

A *batch* holds rows with *weights*; a *tag* is the ranges of a row; an *arrangement* is keyed state
in sorted *runs*. The engine never sees plans, SQL, files or tables: `compile` builds circuits, and
`store` keeps the Arrow tables that they hand out.
"""

"""What remembers something between two batches: a circuit of operators over signed rows.

Words: a *batch* holds rows with *weights*; a *tag* is a row's fragments; an *arrangement* is keyed
state in sorted *runs*. The engine never sees plans, SQL, files or tables: `maintain` builds it,
`store` keeps what it hands out as Arrow tables.
"""

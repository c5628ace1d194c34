"""Which joins have a tree, of what shape, and what it costs. Relations in one bag are joined as
usual, so merging too many is slower, never wrong. Pure: no state, and a tree never depends on
sizes."""

"""Files impctl owns: catalog, sketches, operator state, the writer's lock.

Law of the room: sketch, state and version of a query move together or not at all, in one catalog
transaction; what cannot be proved whole is refused (`StateCorruptError`), never used. The public
face is `store.store.Store` with the frozen values of `store.records`. Nothing from storage options
ever comes here. Out of scope: what operator state means (`engine`), when to maintain (`maintain`).
"""

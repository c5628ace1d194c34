"""Files impctl owns: catalog, sketches, operator state, the writer's lock.

Law: sketch, state and version of a query change together or not at all, in one catalog transaction;
data that cannot be verified is refused (`StateCorruptError`), never used. Nothing from storage
options is ever stored. The interface is `store.store.Store` with the values of `store.records`.
"""

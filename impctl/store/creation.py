"""A store made where there is none, or brought to the present format.

Law: two first commands may come at once; one of them makes it. Nothing is committed to a store
whose folders a power cut could take away.
Out of scope: the catalog's tables (`store.migrations`).
"""

from __future__ import annotations

from impctl.store.catalog import Catalog, create_catalog, open_catalog
from impctl.store.disk import Disk, make_lasting_folder
from impctl.store.layout import Layout
from impctl.store.lock import WriterLock

OWN_LOCK_TIMEOUT = 10.0
"""Seconds that who does not hold the lock already waits for another writer."""


def created(layout: Layout, disk: Disk) -> Catalog | None:
    """The catalog, made under the writer's lock."""
    make_lasting_folder(layout.root, disk)
    lock = WriterLock(layout, disk)
    lock.acquire(OWN_LOCK_TIMEOUT, "create the store")
    try:
        result = open_catalog(layout, disk)
        if result is not None:
            return result
        create_catalog(layout, disk)
        return open_catalog(layout, disk)
    finally:
        lock.release()

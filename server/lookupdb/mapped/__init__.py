"""A dataset in the caller's own process: a read-only ``Mapping`` over all shards of a generation on the local disk.

    people = lookupdb.open("/data/team/people")
    people["ada"]

``generation`` finds a dataset's generations, chooses the active one, opens it and switches to the next; ``dataset`` is
the mapping. Lookups use the native kernels, or the Python fallback in ``python_generation``.

This package imports no builder, server, store or command line: `pip install lookupdb` without extras is enough.
"""

from lookupdb.mapped.dataset import MappedDataset, open_dataset

__all__ = ["MappedDataset", "open_dataset"]

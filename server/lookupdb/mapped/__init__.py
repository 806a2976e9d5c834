"""A dataset in the caller's own process: a read-only ``Mapping`` over all shards of a generation on the local disk.

    people = lookupdb.open("/data/team/people")
    people["ada"]

``location`` knows where a dataset's generations are and which of them is to answer, ``generation`` opens one,
``follower`` changes over to another, ``dataset`` is the mapping and ``look_alikes`` what it can be looked at as. What
a lookup does is native, or its twin (``python_view``).

Light: neither the builder, nor servers, nor the command line are imported, and of the store what reads an announcement,
where there is one.
"""

from __future__ import annotations

from lookupdb.mapped.dataset import MappedDataset, open_dataset

__all__ = ["MappedDataset", "open_dataset"]

"""`lookupdb build`: a source becomes one generation. In the order of the data:

- ``listing``, ``files``, ``streams``, ``fetch`` and ``slices``: the files behind the source's URLs, plain copies of
  them on this machine, and the slices in which large ones are read.
- ``csv_rows``, ``json_rows``, ``parquet_rows`` and ``rows``: a parser for each format; a row becomes a key and a value,
  or is rejected.
- ``read`` and ``crew``: slices become sorted records, in this process or in a crew of processes.
- ``sort``: an external merge sort in bounded memory, and the sample for the compression dictionary.
- ``write``: duplicates are dropped, values compressed, shard files written.

``build`` calls them in this order, checks the ``gates`` with the data of ``gate_facts``, and publishes the generation.
``options`` divides the memory limit among them. ``existing`` finds earlier generations, and adopts them.
"""

from __future__ import annotations

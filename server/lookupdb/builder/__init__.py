"""`lookupdb build`: a source becomes one generation. In the order of the data:

- ``listing``, ``remote`` and ``files``: the files behind the source's URLs, and plain copies of them on this machine.
- ``core``: plan, map, merge, reduce, without knowledge of an engine: slices become records, records shard files.
- ``csv_rows``, ``json_rows``, ``parquet_rows`` and ``rows``: a parser for each format; a row becomes a key and a value,
  or is rejected.
- ``write``: an external merge sort in bounded memory, and the sample for the compression dictionary; compressed values,
  and one shard file. ``dictionary``: the dictionary is kept or trained.

``build`` runs the core on this machine, with a ``crew`` of processes for a large source, checks the ``gates``, and
publishes the generation; it also takes those that were pushed. ``options`` divides the memory limit, and shows
progress. ``existing`` finds earlier generations, gathers the data for the gates, and adopts generations.
``explain`` and ``draft`` look at a source before a build.
"""

from __future__ import annotations

"""`lookupdb build`: a source becomes one generation. In the order of the data:

- ``listing``, ``remote`` and ``files``: the files behind the source's URLs, and plain copies of them on this machine.
- ``core``: plan, map, merge, reduce, for any engine: slices become records, and records become shard files.
- ``csv_rows``, ``json_rows``, ``parquet_rows`` and ``rows``: a parser for each format; a row becomes a key and a value,
  or is rejected.
- ``write``: sort records in bounded memory, sample values for the compression dictionary, compress values, and write a
  shard file. ``dictionary``: keep or train the dictionary.

``build`` runs the core on this machine, with a ``crew`` of processes for a large source, checks the ``gates``, and
publishes the generation; it also takes pushes. ``options`` divides the memory limit, and shows progress. ``existing``
finds earlier generations, gathers the data for the gates, and adopts generations. ``explain`` and ``draft`` look at a
source before a build.
"""

from __future__ import annotations

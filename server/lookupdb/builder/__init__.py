"""`lookupdb build`: a source becomes one generation. The folders are the steps, in the order of the data:

- ``source/``: the files and objects behind the source's URLs, their fingerprint, plain copies of them on this machine,
  and the slices in which large ones are read.
- ``parse/``: one parser a format; a row becomes a key and a value, or is rejected.
- ``read/``: slices become sorted records, in this process or in a crew of processes.
- ``sort/``: an external merge sort in bounded memory, and the sample on which the compression dictionary is trained.
- ``write/``: duplicates are dropped, values compressed, shard files written.

``pipeline`` calls them in this order, lets ``gates`` judge by what ``gate_facts`` and ``sampled_difference`` find, and
publishes the generation. ``budget`` divides the memory limit among them. ``existing_generations`` asks the store what
it holds already, ``adoption`` what that means for the build.
"""

from __future__ import annotations

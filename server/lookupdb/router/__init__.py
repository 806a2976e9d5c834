"""The router: HTTP or RESP in, batches over RESP to the shards, and back.

"Batch" is two things. A client's batch is one POST with many keys (``BatchExchange``). A shard's batch is one MGET
(``ShardBatch``), with keys of whichever requests came together. So a client's batch of 5,000 keys travels:

1. ``clients.front`` accepts the client, ``http.connection`` gets its bytes, ``http.request`` cuts the request out.
2. ``http.routes`` makes the exchange, with the keys that ``http.batches`` parses. That refuses more keys than
   ``maxKeys`` with 413: the default is 1,000, so the dataset must allow 5,000.
3. ``http.exchanges``: a ``BatchExchange`` begins when no other request of its connection is looked up. It counts its
   keys in ``budget``, and asks the lookup core.
4. ``lookup_core`` has ``lookups.batch_keys`` turn keys into bytes and find the shard of each. It cuts the keys of a
   shard into slices of at most 64 (``SLICE_KEYS``; fewer where values are large): at least 79 of them, and 80 for 4
   shards with as many keys each. ``lookups.scatter_gather`` waits for all, ``lookups.deadlines`` watches each
   (``lookups.pending``).
5. ``shards.replicas`` chooses an endpoint for each slice: the less busy of two.
6. ``shards.endpoint`` chooses one of its two lanes. With more than 16 keys a slice on average (``LARGE_SLICE_KEYS``)
   the batch is large work. In that lane, requests send their slices in rotation (``shards.fair_queue``).
7. ``shards.coalescer`` says when a lane sends. ``shards.lane`` adds slices to a shard's batch until it has 256 keys
   (``BATCH_KEYS``), or as many as ``shards.batch_size`` allows. So a shard's batch has fewer than 320 keys, and the
   first one of a lane for large work is a single slice.
8. ``servers.connection`` sends it and reads the reply, with ``servers.replies`` if that is large. ``servers.link``
   makes the connection, and makes it again when it breaks.
9. ``shards.batch`` gives each slice its values. A slice whose try failed gets a second one, from another replica if one
   is ready.
10. With the last slice, ``ScatterGather`` calls ``BatchExchange.done``: ``http.batches`` encodes one answer, which
    ``http.connection`` sends after those to earlier requests.

A single key travels as a ``SingleKey`` in the place of a slice, and leaves as a GET if it is alone. ``http.repeated``
spares it the parser if its request is like the last one, and a batch that came whole in one read of 8 KiB or less, too.
``table.cutover`` puts routing tables, which say where the servers are, into effect. ``worker`` puts everything
together.

``resp`` is the second protocol. Its ``connection`` has one exchange at a time, GETs that came together or an MGET. It
joins this journey at step 4.
"""

from __future__ import annotations

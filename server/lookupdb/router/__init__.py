"""The router: HTTP or RESP in, batches over RESP to the shards, and back.

"Batch" has two meanings. A client's batch is one POST with many keys (``BatchExchange``). A shard's batch is one MGET
(``ShardBatch``) with keys of any requests that came together. A client's batch of 5,000 keys travels like this:

1. ``clients`` accepts the client, ``http.connection`` gets its bytes, ``http.request`` cuts the request out.
2. ``http.exchanges`` makes the exchange, with the keys that ``http.request`` parses. More keys than ``maxKeys`` are
   refused with 413: the default is 1,000, so the dataset must allow 5,000.
3. A ``BatchExchange`` begins when its connection has no other pending request. It counts its keys in ``budget``, and
   asks the lookup core.
4. ``lookup_core`` has ``batch_keys`` encode the keys and find their shards. It cuts the keys of a shard into slices of
   at most 64 (``SLICE_KEYS``; fewer if values are large). For 4 equal shards these are 80 slices. ``lookups`` waits for
   all of them (``ScatterGather``) and watches their deadlines.
5. ``replicas`` chooses an endpoint for each slice, the less busy of two, and one of its two lanes. With more
   than 16 keys per slice on average (``LARGE_SLICE_KEYS``) the batch is large work. In the lane for large work,
   requests take turns, one slice each (``FairQueue``).
6. ``lane``: ``Coalescer`` decides when a lane sends. The lane adds slices to a shard's batch until it has 256
   keys (``BATCH_KEYS``), or the number that ``BatchSize`` allows. So a shard's batch has fewer than 320 keys, and the
   first one of a lane for large work is a single slice.
7. ``server_connection`` sends the batch and reads the reply, value by value if it is large. ``link`` connects,
   and reconnects after a failure.
8. ``ShardBatch`` gives each slice its values. A slice that failed is tried once more, on another ready replica.
9. With the last slice, ``ScatterGather`` calls ``BatchExchange.done``. ``batch_keys`` encodes one answer, which
   ``http.connection`` sends after the answers to earlier requests.

A single key travels as a ``SingleKey`` instead of a slice, and is sent as a GET if it is alone. ``RepeatedRequest``
skips the parser for a request like the last one; a batch must arrive in one read of at most 8 KiB. ``cutover`` puts
routing tables, which name the servers, into effect. ``worker`` connects all of this.

``resp`` is the second protocol. Its ``connection`` has one exchange at a time, GETs that arrived together or an MGET,
and joins at step 4.
"""

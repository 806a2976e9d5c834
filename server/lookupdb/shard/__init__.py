"""The shard server: supervised workers answer for one shard file over RESP, the Redis protocol.

verify      checks the file before a worker maps it
server      the supervisor's part: configuration, listeners, admin port
worker      a worker's life: map the shard, serve, drain, end
loop        the event loop, with the hot path: a lone GET
connection  one client: its requests, its replies, and everything that ends it
commands    the reply to each command
replies     the replies to keys, read from the shard and checked
cold        parks requests that need pages from disk, so that other requests do not wait
limits      identity, counters, and limits of what clients may make a worker hold
"""

from __future__ import annotations

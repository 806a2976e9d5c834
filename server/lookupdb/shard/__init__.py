"""The shard server: supervised workers answer for one shard file over RESP, the Redis protocol.

verify          proves the file before anyone maps it
server          the supervisor's part: configuration, listeners, admin port
worker          a worker's life: map the shard, serve, drain, end
loop            its event loop, and in it the hot path: a lone GET
connection      one client: what it sends, what it is sent, and all that ends it
resp            the protocol: parsing of requests, encoding of replies
commands        the reply to each command
stored_replies  the replies to keys, read from the shard and checked
cold_data       while pages must be read from disk: requests wait for theirs, and nobody else does
cold_switch     whether that is so
budget, limits  what clients may make a worker hold
"""

from __future__ import annotations

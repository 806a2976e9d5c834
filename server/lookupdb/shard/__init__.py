"""The shard server: supervised workers answer for one shard file over RESP, the Redis protocol.

server      the supervisor's part: checks the file before a worker maps it; configuration, listeners, admin port
worker      a worker's life: map the shard, serve, drain, end; its event loop, with a hot path for a lone GET; parks
            requests that need pages from disk, so that other requests do not wait
connection  one client: its requests, its replies, and everything that ends it
commands    the reply to each command, and the replies to keys, read from the shard and checked
limits      identity, counters, and limits of what clients may make a worker hold
"""

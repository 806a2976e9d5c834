"""The Redis protocol (RESP 2 and 3) of shard servers and routers. Does no I/O."""

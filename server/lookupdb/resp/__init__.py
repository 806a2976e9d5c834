"""The Redis protocol (RESP 2 and 3), as shard servers and routers speak it with clients. No I/O."""

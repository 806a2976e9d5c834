"""What ``server/native`` exports. Python code reaches it by ``lookupdb.native`` alone."""

INTERFACE: int

"""Load generators: `load.c` for RESP (and for HTTP, where RESP stands on the other side), wrk for HTTP."""

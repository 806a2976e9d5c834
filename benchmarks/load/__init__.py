"""Load generators: `load.c` for RESP (and for HTTP in comparisons with RESP), wrk for HTTP."""

"""The router: HTTP in, batches over RESP to the shards, HTTP out."""

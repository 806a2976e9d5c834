"""HTTP in, lookups out: the router's public port."""

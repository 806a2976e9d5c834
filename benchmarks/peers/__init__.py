"""The compared processes, ours and those of peers, each started here, on loopback and a free port."""

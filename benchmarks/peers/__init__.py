"""What is compared: our own processes and those of the peers, each started here, on loopback and a free port."""

"""What is decided about rollouts: their servers, the routing table that references these, and when they may go."""

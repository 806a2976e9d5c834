"""What is decided about the build under way: its claim, its Job, what its end means."""

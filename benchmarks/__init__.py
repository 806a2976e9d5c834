"""Measured comparisons with peers: `make bench`, or `python -m benchmarks --list`. See README.md."""

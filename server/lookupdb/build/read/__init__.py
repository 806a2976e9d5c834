"""Slices become sorted records: in this process, or in a crew of processes."""

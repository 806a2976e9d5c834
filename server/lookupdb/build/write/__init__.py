"""Sorted records become shard files."""

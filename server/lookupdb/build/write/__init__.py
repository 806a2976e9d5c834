"""From sorted records to shard files: without duplicates, compressed, one file per shard."""

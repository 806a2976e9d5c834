"""What the source is, and its files on this machine: listing, location, fetch; slices say where a file may be cut."""

"""From slices to sorted records: in this process (``slice_reader``) or in a crew of processes (``crew``)."""

"""What the operator does for the store: its credentials, and the list of datasets that the sweep must spare."""

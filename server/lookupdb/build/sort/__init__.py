"""An external merge sort of records by key, in bounded memory; and the sample of their values."""

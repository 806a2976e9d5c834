"""Records in the order of their keys, in bounded memory."""

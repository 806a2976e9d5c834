"""A slice becomes rows, and a row a key and a value: one parser a format."""

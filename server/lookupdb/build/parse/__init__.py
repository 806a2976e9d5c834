"""From a slice to rows, and from a row to its key and value: one parser per format, behind ``parser.RowParser``."""

"""The source: the files that its urls name (``listing``), plain copies of them (``fetch``), and their ``slices``."""

"""The source: which files it has (``listing``), where they are (``schemes``), plain copies of them (``fetch``), and the
slices in which large ones are read (``slices``)."""

"""``python -m lookupdb`` is ``lookupdb``."""

from lookupdb.cli import main

main()

"""Run ``python -m lookupdb.cli.leash VERB…``: ``lookupdb VERB…`` that ends when its standard input closes.

`lookupdb up` holds the other end of that pipe, so its children end whatever kills it, SIGKILL included.
"""

from lookupdb.cli import main
from lookupdb.process.worker import die_with_supervisor

if __name__ == "__main__":
    die_with_supervisor(0)
    main()

"""``python -m lookupdb.cli.leash VERB…`` is ``lookupdb VERB…`` that ends when its standard input does.

`lookupdb up` holds the other end of that pipe, so whatever ends `up`, SIGKILL included, ends its children.
"""

from lookupdb.cli import main
from lookupdb.process.worker import die_with_supervisor

if __name__ == "__main__":
    die_with_supervisor(0)
    main()

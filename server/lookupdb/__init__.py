"""lookupdb: build, serve and route large, read-mostly lookup datasets.

This package is the data plane and the command line. It never imports kopf, kubernetes or
``lookupdb_operator``: a shard or router process needs nothing but its files.
"""

__version__ = "0.1.0"

"""The console: read-only pages about datasets, and the facts that these and the command line show.

dataset    a LookupDataset, its pods, and routers' answers about its keys
facts      everything that is shown about datasets, and ages, sizes and columns as text; pure
figures    samples of metrics, and rates between two of them
source     the protocol of what supplies datasets, metrics and lookups, and the client for pods
watch      scrapes in the background, and their history
pages      templates and charts
server     the HTTP server
access     in a cluster: who may see what, and the login
service    in a cluster: the command, and its source, which watches the datasets

The first four load no server, because commands import them.
"""

from __future__ import annotations

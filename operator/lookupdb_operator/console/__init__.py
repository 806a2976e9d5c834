"""The console: read-only pages about datasets, and the facts that these and the command line show.

dataset    a LookupDataset and its pods
formats    ages, sizes and columns as text
answers    answers of routers about keys
figures    samples of metrics, and rates between two of them
facts      everything that is shown about datasets; pure
source     the place where datasets, metrics and lookups come from, as a protocol
watch      scrapes in the background, and their history
pages      templates
server     the HTTP server

The first five load no server, because commands import them.
"""

from __future__ import annotations

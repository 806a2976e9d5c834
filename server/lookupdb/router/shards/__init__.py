"""One shard: the choice of a replica, queues, and batches.

replicas  choose an endpoint for each try, and park lookups while none is ready
lane      a connection with one batch in flight, and the lookups that wait for the next
"""

from __future__ import annotations

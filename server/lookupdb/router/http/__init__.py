"""HTTP on the public port.

connection  one client: its requests, and their answers in order
request     cuts requests out of bytes; decodes targets, Accept fields and batches
exchanges   a request that waits for its answer: a key, a batch, the dataset's description
repeated    requests that repeat an earlier one, which skip the parser
traces      spans of sampled requests
problems    answers and problems as bytes, and HTTP's limits
"""

from __future__ import annotations

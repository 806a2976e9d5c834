"""One connection to a shard server: connect, verify, use, watch, reconnect.

link        connects, verifies, and reconnects after a failure
connection  sends bytes, and hands over replies in order
"""

from __future__ import annotations

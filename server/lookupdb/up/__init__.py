"""What `lookupdb up` and commands beside it share. `up` itself is the operator's loop (``lookupdb_operator.local``).

run_state   the folder of a running `up`: its lock and its addresses
"""

from __future__ import annotations

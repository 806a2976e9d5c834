"""`lookupdb up`: does the cluster's work on one machine, with processes instead of pods and a directory as the store.

up          build, roll out, route; on a change: build, roll out, cut over, drain, retire
builds      runs `lookupdb build` as a child process; finds reusable generations; limits the number of shard servers
child       one `lookupdb` process: started, awaited until ready, restarted when it dies, stopped
observer    reads the manifest and the source at each check, and reports changes
rebuilds    decides when `--watch` builds, and how long it waits before a retry
serving     runs the router and the shard servers: rollout, cutover, logs, damaged files
run_state   the folder of a running `up`: its lock, its address, and the last success file it handled
client      a client of the router, for `lookupdb get`
"""

from __future__ import annotations

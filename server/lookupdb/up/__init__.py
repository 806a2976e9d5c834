"""`lookupdb up`: does the cluster's work on one machine, with processes for pods and a directory for the store.

up          build, roll out, route; on a change: build, roll out, cut over, drain, retire
builds      `lookupdb build` as a child process, which generation can be reused, and the limit on shard servers
child       one `lookupdb` process: started, awaited until ready, restarted when it dies, stopped
observer    what manifest and source ask for at each check
rebuilds    when a watch builds, and the pause before a retry
serving     router and rollouts: the cutover from one to the next, their logs, and damaged files
run_state   the folder of a running `up`: its lock, its address, and the last answered success file
client      a client of the router, for `lookupdb get`
"""

from __future__ import annotations

"""`lookupdb up`: plays the cluster's part on one machine, with processes for pods and a directory for the store.

child             one `lookupdb` process: started, awaited until ready, restarted when it dies, stopped
environment       what children get of the environment
builds            `lookupdb build` as a child process, and which generation can be reused
first_generation  which one is served at the start
observer          what manifest and source ask for, look by look
kept_answer       how the last success file was answered, for the next `up`
rebuilds          when a watch builds, by what it sees and what has failed
backoff           the pause before what has failed is tried again
bounds            how many shard servers one machine may be asked for
rollout           the shard processes of one generation
rollout_logs      their logs, which go with their rollout but for the last ones
damage            whether files are why a server does not start again
router            the router process, and which routing table it says is in effect
serving           router and rollouts together: the cutover from one to the next, and the end of all
run_state         the folder of a running `up`: its lock, and how its dataset is reached
client            a client of the router, for `lookupdb get`
up                build, roll out, route; on a change: build, roll out, cut over, drain, retire
"""

from __future__ import annotations

"""`lookupdb up`: the cluster's part played on one machine, with processes for pods and a directory for the store.

child        one `lookupdb` process: started, awaited until ready, restarted when it dies, stopped
environment  what children get of the environment
builds       `lookupdb build` as a child process, and which generation can be reused
bounds       how many shard servers one machine may be asked for
rollout      the shard processes of one generation
router       the router process, and its word on which routing table is in effect
up           build, roll out, route; on a change: build, roll out, cut over, drain, retire
"""

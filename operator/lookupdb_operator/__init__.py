"""The control plane of lookupdb: operator, gateway, console, kubectl plugin, and the loop of `lookupdb up`.

watch      informers (kopf, reflectors) ──▶ cache; they wake datasets
loop       queue ──▶ reconcile: observe (cache → Observed) ──▶ plan (pure) ──▶ apply, delete (cluster)

cluster/    the API server: client, lists, watches, the cache by dataset, and JSON parsed into records
plan/       every decision, as pure functions
manifests/  every object that is written, as pure functions
loop/       when a dataset is reconciled, and what a reconcile pass does
gateway/    `lookupdb gateway`, in front of the store
plugin/     `kubectl lookupdb`

``store`` has the store's credentials, the key of shard servers, and the list of datasets that the sweep spares.
"""

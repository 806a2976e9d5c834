"""The control plane of lookupdb: the only code that knows Kubernetes.

watch      informers (kopf, reflectors) ──▶ cache; they wake datasets
loop       queue ──▶ reconcile: observe (cache → Observed) ──▶ plan (pure) ──▶ apply, delete (api)

api/        what is sent to the API server: one client, every write, lists
watch/      what the API server has: lists and watches, cached by dataset
parse/      from the API server's JSON to records, pure
plan/       every decision, from data to data
manifests/  every object that is written, from data to data
store/      the store's credentials, and the list of datasets that the sweep spares
loop/       when a dataset is looked at, and what a look does
"""

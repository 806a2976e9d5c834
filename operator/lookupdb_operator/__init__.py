"""The control plane of lookupdb: the only code that knows Kubernetes.

main        informers (kopf, reflectors) ──▶ cache, queue ──▶ reconcile
reconcile   observe (cache → Observed) ──▶ plan (pure) ──▶ apply (cluster)

plan/       every decision, from data to data
manifests/  every object that is written, from data to data
cluster     the only module that writes to the API server
"""

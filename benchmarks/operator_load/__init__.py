"""What the operator costs: CPU and memory of a start, of a refresh of every dataset, of rest, by number of datasets.

The API server, its controllers and kubelets are simulated in a process of their own (``simulator``); the operator is
the real one, started as in its pod.
"""

"""The operator's cost by number of datasets: CPU and memory of a start, of a refresh of every dataset, and at rest.

A process of its own (``simulator``) simulates the API server, its controllers and kubelets. The operator is real, and
started as in its pod.
"""

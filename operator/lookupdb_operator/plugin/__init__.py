"""Commands for datasets: ``kubectl lookupdb`` for those of a cluster, ``lookupdb`` for those of a ``lookupdb up``.

__main__         the entry point, which needs no package of the operator's
cli              the program beside kubectl: its commands and completion; `lookupdb` loads those that both have by name
options          common options: cluster or data folder, namespace, output
read_verbs       ls, status, history, logs, top
change_verbs     refresh, promote, reject, rollback, pin, unpin: each one write
get_verb         get, in a cluster
job_verbs        diff, prune, load, in a cluster: each runs a Job
session          requests about datasets, whoever answers them
cluster_session  requests to a cluster's API server, and port forwarding
local_session    requests to a ``lookupdb up``, or to its files
changes          a LookupDataset, the writes, and the progress of a change: pure
jobs             the Jobs and their progress: pure
status_view      the screen of one dataset, its history, and the list of all: pure
views            columns, and the output of get and top: pure
"""

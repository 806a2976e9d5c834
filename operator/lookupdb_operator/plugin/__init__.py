"""Commands for datasets: ``kubectl lookupdb`` for those of a cluster, ``lookupdb`` for those of a ``lookupdb up``.

__main__         the entry point, which needs no package of the operator's
cli              the program beside kubectl: its commands and completion; `lookupdb` loads those that both have by name
options          common options: cluster or data folder, namespace, output
read_verbs       ls, status, history, logs, top
change_verbs     refresh, promote, reject, rollback, pin, unpin: each one write
cluster_verbs    get, diff, prune, load, in a cluster: all but get run a Job
session          requests about datasets, whoever answers them, and those to a ``lookupdb up``, or to its files
cluster_session  requests to a cluster's API server, and port forwarding
changes          the writes, and the progress of a change: pure
jobs             the Jobs and their progress: pure
views            the screen of one dataset, its history, the list of all, and the output of get and top: pure
"""

"""Commands for datasets: ``kubectl lookupdb`` for those of a cluster, ``lookupdb`` for those of a ``lookupdb up``.

__main__         the entry point, which imports no dependency of the operator
cli              the program beside kubectl: its commands and completion; `lookupdb` finds shared commands by name
options          common options: cluster or data folder, namespace, output
read_verbs       ls, status, history, logs, top
change_verbs     refresh, promote, reject, override-gates, rollback, pin, unpin: each one write
cluster_verbs    get, diff, prune, load of ``kubectl lookupdb``: all but get run a Job
session          the interface of requests about datasets, and its session with a ``lookupdb up`` or its files
cluster_session  requests to a cluster's API server, and port forwarding
changes          the writes, and the progress of a change: pure
jobs             the Jobs and their progress: pure
views            the screen of one dataset, its history, the list of all, and the output of get and top: pure
"""

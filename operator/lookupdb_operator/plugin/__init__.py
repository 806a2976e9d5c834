"""``kubectl lookupdb``: commands for datasets, in one program beside kubectl.

cli            the program: its commands, completion, errors and exit codes
options        common options: cluster, namespace, output
read_verbs     logs, get, status, top
change_verbs   refresh, promote, reject, rollback, unpin: each one write
job_verbs      diff, load: each runs a Job
session        requests to one API server, and port forwarding
changes        a LookupDataset, the writes, and the progress of a change: pure
jobs           the Jobs and their progress: pure
status_view    the screen of one dataset, and the list of all: pure
views          columns, and the output of get and top: pure
"""

"""``kubectl lookupdb``: commands for datasets, in one program beside kubectl.

cli            the program: its commands, errors and exit codes
options        common options: cluster, namespace, output; shell completion
read_verbs     logs, get, status, top
change_verbs   refresh, promote, reject, rollback, unpin: each one write
diff, load     commands that run a Job
jobs, job_run  the Jobs, and running them
session        requests to one API server, and port forwarding
changes        a LookupDataset, and the writes: pure
progress       progress and result of a change: pure
status_view    the screen of one dataset: pure
views          tables and other output: pure
"""

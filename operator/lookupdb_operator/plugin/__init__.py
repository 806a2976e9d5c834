"""``kubectl lookupdb``: what a person does with datasets, in one program beside kubectl.

cli            the program: its verbs, its errors and exit codes
options        what verbs have in common: cluster, namespace, form of the output
completion     completion in shells, and kubectl's own

status_verb    status: one dataset on a screen, or all in a table
lookup_verb    get
change_verbs   refresh, promote, reject, rollback, unpin: each one write
log_verb       logs of the last build
top_verb       top

session        requests to one API server
port_forward   a pod's port, through kubectl: where NetworkPolicies keep the API server's proxy out
dataset        a LookupDataset as a person reads it: of any version of the operator
changes        which write a verb asks for: pure
progress       whether it is done, what came of it, and what it waits for: pure
views          what verbs print: pure
"""

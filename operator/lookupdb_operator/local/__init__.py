"""The cluster of `lookupdb up`: the operator's loop over objects in files and pods that are processes.

api      the API server: objects in memory and in files, in this process
kubelet  the controllers and the kubelet: runs the pods of Jobs, StatefulSets and Deployments as processes
process  one `lookupdb` process: started, restarted when it dies, stopped
socket_api  the API server on a socket, for commands
kubeconfig  the API server on a port, for `kubectl`
up       the command: puts manifests into the cluster, follows their sources, and runs the loop
"""

from __future__ import annotations

"""The cluster of `lookupdb up`: the operator's loop over objects in files and pods that are processes.

up       the command: puts manifests into the cluster, follows their sources, and runs the loop
server   the API server and the console over HTTP: for commands, `kubectl` and browsers
kubelet  the controllers and the kubelet: runs the pods of Jobs, StatefulSets and Deployments as processes
api      the API server: objects in memory and in files, and how commands reach them
"""

from __future__ import annotations

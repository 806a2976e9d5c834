"""The common part of long-running processes: supervisor, workers, counters, admin port, memory figures.

``admin`` runs a role (serve, route). ``worker`` is the worker's side; it imports little, because every worker pays
for each import.
"""

from __future__ import annotations

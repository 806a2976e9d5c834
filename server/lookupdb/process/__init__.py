"""The parts that every long-running process shares: supervisor, workers, counters, admin port, memory figures.

``service`` puts it together for a role (serve, route). ``worker`` is the worker's side and imports next to
nothing, because what it imports is paid for once in every worker.
"""

from __future__ import annotations

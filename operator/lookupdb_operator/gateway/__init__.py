"""``lookupdb gateway``: stands before the store, holds its credentials, and lets every namespace reach its own part.

A request's journey: ``server`` (connections) → ``handlers`` (who, what, whether) → ``reads``, ``writes`` (bodies) →
``objects`` (the store). ``tokens`` and ``keys`` say who asks, ``targets`` what, ``access`` whether it is theirs,
``admission`` and ``budget`` whether there is room. ``credentials`` gives ``objects`` a new client when the Secret
changes. Paths, headers and limits are those of ``lookupdb.store.gateway_wire``.
"""

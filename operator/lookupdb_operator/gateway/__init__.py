"""``lookupdb gateway``: holds the store's credentials, and gives every namespace access to its own part only.

A request passes through ``service`` (connections), ``request`` (operation, path and permission), and ``transfers``
(limits, bodies, and the store). ``credentials`` renews the store's client. Paths, headers and limits are those of
``lookupdb.store.objects``.
"""

"""`lookupdb sync`: keep the active generation of chosen datasets in a folder, for programs that map it.

    <folder>/<namespace>/<name>/g12/manifest.json, shard-…   read-only, whole
                                current → g12                the active one, swapped by a rename
                                .g13.partial/                 being fetched

``feeds`` reports which generation is active: from a routing table, or from the store. ``keeper`` has it fetched into
the dataset's ``folder``, points ``current`` to it, and removes old generations that no program has mapped. ``service``
runs a keeper for each dataset in one process, with an admin port.

A reader that has mapped a generation holds a shared flock on its manifest.json.
"""

"""`lookupdb sync`: keeps the active generation of chosen datasets in a folder, for programs that map it.

    <folder>/<namespace>/<name>/g12/manifest.json, shard-…   read-only, whole
                                current → g12                what serves, swapped by a rename
                                .g13.partial/                 being fetched

The journey of a generation: a ``feed`` says which one is active (``table_feed``: a routing table; ``store_feed``: the
announcement in the store, else the newest one there). ``keeper`` has it fetched (``generation_fetch``) into a
``dataset_folder``, points ``current`` to it, and removes what is superseded and mapped by nobody. ``service`` runs a
keeper for each dataset in one process, with an admin port. ``target`` decides what may follow what, and
``retention`` what stays to go back to, without I/O.

A reader that has mapped a generation holds a shared flock on its manifest.json.
"""

"""A generation as container images, one for each shard, that a kubelet can mount: `lookupdb image`.

artifact.py     what an image consists of and is called, as bytes: pure
shard_bytes.py  the bytes of a shard's file, from a folder or a store, verified as they pass
layout.py       an OCI image layout in a folder
registry.py     what a push asks of a registry, by oras
push.py         a generation into a registry
"""

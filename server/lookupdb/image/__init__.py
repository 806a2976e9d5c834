"""A generation as container images, one for each shard, that a kubelet can mount: `lookupdb image`.

artifact.py  the content and the name of an image, as bytes: pure
push.py      an OCI image layout in a folder, with the verified bytes of a shard's file, and into a registry, by oras
"""

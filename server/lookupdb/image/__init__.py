"""A generation as container images, one for each shard, that a kubelet can mount: `lookupdb image`.

artifact.py  the content and the name of an image, as bytes: pure
push.py      writes images into a folder, as an OCI image layout, and pushes them into a registry, with oras
"""

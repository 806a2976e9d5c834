"""A generation as container images, one for each shard, that a kubelet can mount: `lookupdb image`.

reference.py      what an image is called: pure
artifact.py       what an image consists of, as bytes: pure
layer.py          a layer: a tar archive, made as it is read
shard_bytes.py    the bytes of a shard's file, from a folder or a store, verified as they pass
layout.py         an OCI image layout in a folder
docker_config.py  the credentials for a registry
challenge.py      how a registry asks for them: pure
address.py        the URLs that a registry sends: pure
timed_response.py an answer that comes whole within a time, or not at all
early_answer.py   an answer that comes before all is sent
exchange.py       a request and its answer, wherever it is led to
registry.py       what a push asks of a registry
words.py          what a registry says, as it may be shown: pure
push.py           a generation into a registry
"""

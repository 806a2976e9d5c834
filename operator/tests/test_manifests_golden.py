"""Everything that is written to a cluster, to be read: operator/tests/golden/.

``LOOKUPDB_GOLDEN=update pytest operator/tests/test_manifests_golden.py`` writes the files again: read the diff.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest
import yaml
from manifest_samples import (
    BUILD,
    CONFIG,
    FULL_CONFIG,
    GATEWAY_CONFIG,
    GOLDEN,
    SPARK_CONFIG,
    airports,
    everything,
    from_config_map,
    from_images,
    from_volume,
    rendered,
    with_own_store,
    with_spark,
    with_sync,
)

from lookupdb_operator import manifests

_REBUILD = dataclasses.replace(
    BUILD, generation="g13", active="g12", unless_fingerprint="f0f1f2", unless_success_file="a0a1a2"
)
_PRUNING = dataclasses.replace(BUILD, active="g11", protect=("g9", "g10", "g11"))
_PASSWORDS = dataclasses.replace(CONFIG, shard_key=bytes(32))
_KEY = manifests.password_key(airports(), _PASSWORDS)
_FILES: dict[str, tuple[Any, ...]] = {
    **{f"airports/{part}": objects for part, objects in rendered(airports()).items()},
    **{f"everything/{part}": objects for part, objects in rendered(everything(), FULL_CONFIG).items()},
    "everything/build": manifests.render_builder(everything(), _REBUILD, FULL_CONFIG),
    "everything/router-keys": (manifests.render_router_keys(everything(), '{"keys":[]}\n'),),
    "configmap/build": manifests.render_builder(from_config_map(), BUILD, CONFIG),
    "gateway/build": manifests.render_builder(everything(), BUILD, GATEWAY_CONFIG),
    "passwords/key-secret": (manifests.render_key_secret(airports(), _PASSWORDS),),
    "passwords/router": manifests.render_routers(airports(), _PASSWORDS, (_KEY, "f0f1f2f3")),
    "passwords/shards": rendered(airports(shards=1), _PASSWORDS)["shards"],
    "own-store/build": manifests.render_builder(with_own_store(), _PRUNING, GATEWAY_CONFIG),
    "own-store/shards": rendered(with_own_store(), GATEWAY_CONFIG)["shards"],
    "own-store/network-policy": rendered(with_own_store(), GATEWAY_CONFIG)["network-policy"],
    "image/shards": rendered(from_images(), GATEWAY_CONFIG)["shards"],
    "image/network-policy": rendered(from_images(), GATEWAY_CONFIG)["network-policy"],
    "volume/shards": rendered(from_volume(), GATEWAY_CONFIG)["shards"],
    "sync/daemon-set": manifests.render_sync(with_sync(), dataclasses.replace(GATEWAY_CONFIG, announces=True)),
    "sync/network-policy": manifests.render_network_policies(with_sync(), FULL_CONFIG)[-1:],
    "spark/build": manifests.render_builder(with_spark(), BUILD, SPARK_CONFIG),
    "spark/network-policy": rendered(with_spark(), SPARK_CONFIG)["network-policy"],
    "gateway/shards": rendered(airports(shards=1), GATEWAY_CONFIG)["shards"],
}


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if text.count("\n") > 1 else None)


_Dumper.add_representer(str, _text)


@pytest.mark.parametrize("name", _FILES)
def test_objects_are_as_their_golden_file_shows_them(name: str) -> None:
    path = GOLDEN / f"{name}.yaml"
    text = yaml.dump_all(_FILES[name], Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
    if os.environ.get("LOOKUPDB_GOLDEN") == "update":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "if that is meant: LOOKUPDB_GOLDEN=update pytest …"


def test_every_golden_file_is_compared_with_something() -> None:
    files = {str(path.relative_to(GOLDEN).with_suffix("")) for path in GOLDEN.glob("*/*.yaml")}
    assert {name for name in files if not name.endswith("/dataset")} == set(_FILES)

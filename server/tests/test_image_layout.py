"""A generation as an OCI image layout: the same bytes whoever writes it, and the shard's own bytes within."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from support.shards import write_generation

from lookupdb.cli.copy import image as command
from lookupdb.errors import CorruptFile, UsageError
from lookupdb.image.artifact import ARCHITECTURES, plain_manifest, render_layer, shard_tag
from lookupdb.image.push import ImageLayout
from lookupdb.manifest import FILE_NAME, Manifest, Refusal
from lookupdb.shard.server import Verification, locate_shard
from lookupdb.store.generations import find_in_folder

RECORDS = {f"key {number}": os.urandom(50) for number in range(500)}
SHARDS = 2


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generation(tmp_path_factory.mktemp("generation"), RECORDS, shards=SHARDS, uid="3f2b9c1e-77aa")


def write(generation: Path, folder: Path, shards: tuple[int, ...] = (0, 1)) -> dict[str, str]:
    """Tag → digest."""
    written = ImageLayout(folder).write(find_in_folder(generation), shards, 0)
    return {image.tag: image.digest for image in written}


def test_two_do_not_write_one_layout_at_once(generation: Path, tmp_path: Path) -> None:
    """They would mix their bytes in one file, and name it by a digest that is not its own."""
    layout, found = ImageLayout(tmp_path), find_in_folder(generation)
    refused: list[str] = []

    def write_again(_: int) -> None:
        with pytest.raises(UsageError, match="another process writes images to") as caught:
            ImageLayout(tmp_path).write(found, [0], 0)
        refused.append(str(caught.value))

    layout.write(found, [0, 1], 0, write_again)
    assert refused
    write(generation, tmp_path)


def blob(layout: Path, descriptor: dict[str, Any]) -> bytes:
    """The content that a descriptor names, which must be what it says."""
    content: bytes = (layout / "blobs" / "sha256" / descriptor["digest"].removeprefix("sha256:")).read_bytes()
    assert descriptor["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert descriptor["size"] == len(content)
    return content


def unpack(layout: Path, tag: str, architecture: str, folder: Path) -> None:
    """Unpack as a container runtime does, from index.json to files, and check every digest."""
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    entries = json.loads((layout / "index.json").read_text())["manifests"]
    (entry,) = (e for e in entries if e["annotations"]["org.opencontainers.image.ref.name"] == tag)
    index = json.loads(blob(layout, entry))
    (chosen,) = (e for e in index["manifests"] if e["platform"] == {"os": "linux", "architecture": architecture})
    image = json.loads(blob(layout, chosen))
    config = json.loads(blob(layout, image["config"]))
    assert (config["os"], config["architecture"]) == ("linux", architecture)
    layers = [blob(layout, layer) for layer in image["layers"]]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer), mode="r:") as archive:
            archive.extractall(folder, filter="data")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_is_unpacked_can_be_served(generation: Path, tmp_path: Path, architecture: str) -> None:
    tags = write(generation, tmp_path / "layout")
    for shard, tag in enumerate(tags):
        folder = tmp_path / f"mounted-{shard}"
        unpack(tmp_path / "layout", tag, architecture, folder)
        assert {path.name for path in folder.iterdir()} == {"manifest.json", f"shard-{shard:05d}-of-00002.lmdb"}
        served = locate_shard(folder, shard)
        Verification(served, "auto", 1 << 40).run()
        assert served.path.read_bytes() == (generation / served.path.name).read_bytes()


def test_tags_name_dataset_uid_generation_and_shard(generation: Path, tmp_path: Path) -> None:
    name = find_in_folder(generation).manifest.name
    assert list(write(generation, tmp_path)) == [
        f"{name}-3f2b9c1e-g1-shard-00000",
        f"{name}-3f2b9c1e-g1-shard-00001",
    ]


def test_the_longest_tag_is_one_that_registries_take() -> None:
    assert len(shard_tag("n" * 40, "u" * 36, "g999999999", 1023)) <= 128


def test_the_same_generation_gives_the_same_bytes(generation: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(generation, tmp_path / "elsewhere")
    for path in copied.iterdir():
        os.utime(path, (1, 1))
    assert write(generation, tmp_path / "one") == write(copied, tmp_path / "two")
    assert subprocess.run(["diff", "-r", tmp_path / "one", tmp_path / "two"], check=False).returncode == 0


def test_a_buckets_names_of_files_leave_no_trace(generation: Path, tmp_path: Path) -> None:
    """So an unchanged shard is the same layer in each generation."""
    bucket = shutil.copytree(generation, tmp_path / "bucket")
    manifest = Manifest.from_json((bucket / "manifest.json").read_bytes(), "")
    entries = []
    for entry in manifest.shards:
        name = entry.file.replace(".lmdb", "-3f2b9c1e77aa.lmdb")
        (bucket / entry.file).rename(bucket / name)
        entries.append(replace(entry, file=name))
    renamed = replace(manifest, shards=tuple(entries))
    (bucket / "manifest.json").chmod(0o644)
    (bucket / "manifest.json").write_bytes(renamed.to_json())
    assert plain_manifest(renamed) == manifest
    assert write(bucket, tmp_path / "one") == write(generation, tmp_path / "two")


def test_a_shard_that_has_not_changed_is_the_same_layer_in_the_next_generation(
    generation: Path, tmp_path: Path
) -> None:
    later = shutil.copytree(generation, tmp_path / "later")
    manifest = Manifest.from_json((later / "manifest.json").read_bytes(), "")
    (later / "manifest.json").chmod(0o644)
    (later / "manifest.json").write_bytes(replace(manifest, generation="g2").to_json())
    layers = []
    for folder in (generation, later):
        layout = tmp_path / f"layout-{folder.name}"
        write(folder, layout, (1,))
        entry = json.loads((layout / "index.json").read_text())["manifests"][0]
        image = json.loads(blob(layout, json.loads(blob(layout, entry))["manifests"][0]))
        layers.append([layer["digest"] for layer in image["layers"]])
    (first, shard), (later_first, later_shard) = layers
    assert shard == later_shard
    assert first != later_first


def test_damage_is_found_before_anything_refers_to_it(generation: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(generation, tmp_path / "damaged")
    path = damaged / "shard-00001-of-00002.lmdb"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    layout = tmp_path / "layout"
    with pytest.raises(CorruptFile, match="has sha256"):
        write(damaged, layout)
    assert not (layout / "index.json").exists()
    assert not [path for path in (layout / "blobs" / "sha256").iterdir() if path.name.startswith(".")]
    assert list(write(generation, layout)), "the same folder can be written to again"


def test_a_folder_with_something_else_is_left_alone(generation: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UsageError, match="holds no image layout"):
        write(generation, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 10_000])
def test_a_layer_is_a_tar_archive_of_a_known_size(size: int) -> None:
    content = os.urandom(size)
    layer = b"".join(render_layer("name", size, [content[:7], content[7:]]))
    assert len(layer) == 512 + size + -size % 512 + 1024
    with tarfile.open(fileobj=io.BytesIO(layer), mode="r:") as archive:
        (member,) = archive.getmembers()
        extracted = archive.extractfile(member)
        assert extracted is not None
        assert (member.uid, member.gid, member.mtime, member.mode) == (0, 0, 0, 0o444)
        assert extracted.read() == content


def test_a_file_beyond_8_gib_has_one_header() -> None:
    header = next(iter(render_layer("shard", 20 << 30, [])))
    assert len(header) == 512
    assert tarfile.TarInfo.frombuf(header, "utf-8", "strict").size == 20 << 30


def test_a_file_of_another_size_than_announced_ends_no_layer() -> None:
    with pytest.raises(ValueError, match="its header says 5"):
        list(render_layer("name", 5, [b"four"]))


def run(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(command, [*words, *([] if "--help" in words else ["--json"])])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        return getattr(found.exception, "exit_code", 1), f"{found.output}{found.exception}"
    return found.exit_code, found.output


def test_the_command_says_what_it_has_written(generation: Path, tmp_path: Path) -> None:
    code, output = run("write", str(generation), "--out", str(tmp_path / "layout"), "--shard", "1")
    told = orjson.loads(output.splitlines()[-1])
    assert (code, told["outcome"]) == (0, "written")
    (image,) = told["images"]
    assert image["tag"].endswith("-g1-shard-00001")
    (entry,) = json.loads((tmp_path / "layout" / "index.json").read_text())["manifests"]
    assert entry["digest"] == image["digest"]


def test_what_an_earlier_generation_has_left_in_the_folder_stays(generation: Path, tmp_path: Path) -> None:
    earlier = write_generation(tmp_path, {"another": b"x" * 1000}, uid="3f2b9c1e-77aa")
    folder = tmp_path / "layout"
    code, output = run("write", str(earlier), "--out", str(folder))
    assert (code, orjson.loads(output.splitlines()[-1])["message"]) == (0, f"{folder} holds 1 image")
    left = list((folder / "blobs" / "sha256").iterdir())
    assert run("write", str(generation), "--out", str(folder))[0] == 0
    assert all(path.exists() for path in left), "something else may refer to them"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (lambda folder: [str(folder), "--shard", "2"], 2, "there is no shard 2"),
        (lambda folder: [str(folder.parent / "nowhere")], 2, "neither a folder nor a generation"),
        (lambda folder: [str(folder.parent)], 5, "holds no whole generation"),
    ],
)
def test_what_cannot_be_written_ends_with_a_sentence(
    generation: Path, tmp_path: Path, words: Callable[[Path], list[str]], code: int, sentence: str
) -> None:
    ended, output = run("write", *words(generation), "--out", str(tmp_path / "layout"))
    assert ended == code
    assert sentence in output


def test_a_folder_that_may_not_be_written_to_is_reported_and_not_the_store(generation: Path) -> None:
    code, output = run("write", str(generation), "--out", "/sys/lookupdb")  # where root may not make anything either
    assert code == 2
    assert "cannot write to /sys/lookupdb" in output


def test_what_a_gate_has_refused_is_written_only_if_it_is_named(generation: Path, tmp_path: Path) -> None:
    refused = tmp_path / "g1"
    shutil.copytree(generation, refused)
    manifest = find_in_folder(refused).manifest
    why = Refusal(reasons=("1 record, less than minRecords 2",), gates="", active="")
    (refused / FILE_NAME).chmod(0o644)
    (refused / FILE_NAME).write_bytes(replace(manifest, refused=why).to_json())
    for words in ([], ["--override-gates", "g2"]):
        code, output = run("write", str(refused), "--out", str(tmp_path / "layout"), *words)
        assert code == 4
        assert "less than minRecords 2" in output
        assert "--override-gates g1" in output
        assert not (tmp_path / "layout").exists()
    code, _ = run("write", str(refused), "--out", str(tmp_path / "layout"), "--override-gates", "g1")
    assert code == 0


def test_help_says_what_each_verb_does() -> None:
    _, output = run("--help")
    verbs = output.partition("Commands:")[2].strip().splitlines()
    assert len(verbs) == 2
    assert all(verb.endswith(".") and not verb.endswith("...") for verb in verbs)


@pytest.mark.skipif(not (shutil.which("skopeo") and shutil.which("umoci")), reason="needs Debian's skopeo and umoci")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tools_that_are_not_ours_read_and_unpack_it(generation: Path, tmp_path: Path, architecture: str) -> None:
    """skopeo follows every digest of what it copies, umoci unpacks as a runtime does."""
    layout, flat = tmp_path / "layout", tmp_path / "flat"
    tag = list(write(generation, layout))[1]
    platform = ["--override-os", "linux", "--override-arch", architecture]
    for words in (
        ["skopeo", *platform, "inspect", f"oci:{layout}:{tag}"],
        ["skopeo", *platform, "copy", "--quiet", f"oci:{layout}:{tag}", f"oci:{flat}:{tag}"],
        ["umoci", "unpack", "--rootless", "--image", f"{flat}:{tag}", str(tmp_path / "bundle")],
    ):
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
    served = locate_shard(tmp_path / "bundle" / "rootfs", 1)
    Verification(served, "auto", 1 << 40).run()

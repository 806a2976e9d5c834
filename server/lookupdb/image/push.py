"""Push a generation's images into a registry, with oras. Each shard's file is read twice, as a stream: first for the
digest, because the registry may already have the layer, then for the layer. No shard is written to this machine."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import logging
import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, TypeVar

import orjson

from lookupdb.backoff import Backoff
from lookupdb.errors import CorruptFile, RegistryDenied, RegistryError, UsageError
from lookupdb.image.artifact import (
    ARCHITECTURES,
    INDEX_TYPE,
    LAYER_TYPE,
    Blob,
    ShardImage,
    describe_blob,
    list_documents,
    list_parts,
    plain_manifest,
    read_annotations,
    render_annotations,
    render_image,
    render_layer,
    render_layout_index,
    shard_tag,
)
from lookupdb.manifest import ShardFile
from lookupdb.network import is_loopback, trust_also
from lookupdb.store.directory import folder_errors, store_errors
from lookupdb.store.generations import StoredGeneration, read_resumed, write_all

# Read a shard's file from a folder or a store as a stream, verified at its end.


_CHUNK: Final = 1 << 20


def read_shard(generation: StoredGeneration, entry: ShardFile, patience: float) -> Iterator[bytes]:
    """Yield the file's bytes; after an error of the store, resume until nothing arrives for ``patience`` seconds.
    Raises StoreError, and CorruptFile before the last byte unless size and checksum match the manifest: a damaged file
    is never sent completely."""
    digest, size = hashlib.sha256(), 0
    held = b""
    if isinstance(generation.place, Path):
        chunks = _read_file(generation.place / entry.file)
    else:
        chunks = read_resumed(generation.place, generation.manifest.generation, entry, patience)
    for chunk in chunks:
        if held:
            yield held
        held = bytes(chunk)
        digest.update(held)
        size += len(held)
    for what, expected, found in (("bytes", entry.bytes, size), ("sha256", entry.sha256, digest.hexdigest())):
        if expected != found:
            raise CorruptFile(
                f"{entry.file} in {generation.where} has {what} {found}, its index says {expected}",
                hint="the generation is damaged: build another",
            )
    if held:
        yield held


def _read_file(path: Path) -> Iterator[bytes]:
    with store_errors(f"cannot read {path}"), path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


# An OCI image layout in a folder: the images of a generation, for tools that copy them elsewhere.


log = logging.getLogger(__name__)

_MARK: Final = "oci-layout"
_VERSION: Final = orjson.dumps({"imageLayoutVersion": "1.0.0"})


class ImageLayout:
    """An image layout at ``folder``. index.json is written last: what it lists is whole."""

    def __init__(self, folder: Path) -> None:
        """Raises UsageError if ``folder`` holds something else, FolderDenied if it may not be created, else
        StoreError."""
        self._folder = folder
        self._blobs = folder / "blobs" / "sha256"
        with folder_errors(f"cannot write to {folder}"):
            if folder.exists() and not (folder / _MARK).is_file() and (not folder.is_dir() or any(folder.iterdir())):
                raise UsageError(f"{folder} holds no image layout", hint="use an empty or new folder")
            self._blobs.mkdir(parents=True, exist_ok=True)
            (folder / _MARK).write_bytes(_VERSION)

    def write(
        self,
        generation: StoredGeneration,
        shards: Sequence[int],
        patience: float,
        advance: Callable[[int], None] = lambda _: None,
    ) -> list[ShardImage]:
        """Write the images of ``shards`` of ``generation``, and list only them in index.json. ``advance`` gets the
        number of further bytes read. Raises StoreError, CorruptFile, FolderDenied, NotEnoughRoom; UsageError if another
        process writes."""
        with self._lock():
            manifest = plain_manifest(generation.manifest)
            images = []
            for shard in shards:
                file = manifest.shards[shard].file, manifest.shards[shard].bytes
                content = _counted(read_shard(generation, generation.manifest.shards[shard], patience), advance)
                image = render_image(manifest, shard, self._put_stream(render_layer(*file, content)))
                for blob, text in (*image.blobs, *list_documents(image)):
                    path = self._blobs / blob.digest.removeprefix("sha256:")
                    if not path.exists():
                        self._replace(path, text)
                images.append(image)
            self._replace(self._folder / "index.json", render_layout_index(images))
            return images

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Keep others out: two writers of the same file would mix their bytes."""
        with folder_errors(f"cannot write to {self._folder}"):
            mark = (self._folder / _MARK).open("rb")
        with mark:
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy = f"another process writes images to {self._folder}"
                raise UsageError(busy, hint="wait until it is done, or use another folder") from None
            except OSError:
                pass  # a file system without locks
            yield

    def _put_stream(self, chunks: Iterable[bytes]) -> Blob:
        """Write a layer whose digest is known at its end."""
        digest, size = hashlib.sha256(), 0
        partial = self._blobs / ".layer.partial"
        try:
            with folder_errors(f"cannot write {partial}"), partial.open("wb", buffering=0) as file:
                for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)
                    write_all(file.fileno(), chunk)
            with folder_errors(f"cannot write to {self._blobs}"):
                partial.rename(self._blobs / digest.hexdigest())
        finally:
            partial.unlink(missing_ok=True)
        return Blob(LAYER_TYPE, f"sha256:{digest.hexdigest()}", size)

    def _replace(self, path: Path, content: bytes) -> None:
        partial = path.with_name(f".{path.name}.partial")
        with folder_errors(f"cannot write {path}"):
            partial.write_bytes(content)
            partial.rename(path)


def _counted(chunks: Iterable[bytes], advance: Callable[[int], None]) -> Iterator[bytes]:
    for chunk in chunks:
        advance(len(chunk))
        yield chunk


# A repository of a registry, through oras (https://oras.land): each request runs it once.
#
# Every request may be repeated: an existing blob is not put again, and a manifest has the same content under its name.
# So after a lost answer or an aborted upload, a retry finds what has succeeded.


T = TypeVar("T")

ANSWER_SECONDS: Final = 300.0
"""Time limit for oras after it has read its last byte. A registry checks the digest before it answers."""
_FIRST_BACKOFF_SECONDS: Final = 0.25
_MAX_BACKOFF_SECONDS: Final = 10.0
_MIN_ATTEMPTS: Final = 4
_SHOWN_CHARACTERS: Final = 300
_PIECE_BYTES: Final = 64 << 10
"""The capacity of a pipe."""
_GO_CA_FOLDERS: Final = "/etc/ssl/certs:/etc/pki/tls/certs"
"""Folders that Go searches for CAs beside its one file, unless SSL_CERT_DIR names other folders."""
_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_PATH: Final = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_NO_REASON: Final = re.compile(r'^Error: |^Error response from registry: |^failed to fetch the content of "[^"]*": ')
"""What oras prints before the reason."""
_NOT_FOUND: Final = re.compile(r"Error response from registry: .*: not found\s*", re.DOTALL)
_DENIED: Final = re.compile(
    r"status code:? 40[13]\b|(?:^|: )(?:unauthorized|denied): |basic credential not found|for basic auth$"
)
_FINAL: Final = re.compile(
    r"status code:? 4(?!08|25|29)\d\d"
    r"|(?:^|: )(?:(?:blob upload|digest|manifest|name|size) invalid|unsupported): "
    r"|server gave HTTP response to HTTPS client|first record does not look like a TLS handshake"
)
"""Errors that a retry cannot help: a status, a code of the specification, or a message of Go."""
_SECRET: Final = re.compile(r"(?<=//)[^/?#\s\"]*@|\?[^\s\"]*")
"""The user and the query of a URL."""
_HINTS: Final = {
    "HTTP response to HTTPS client": "--plain-http speaks to a registry that has no TLS",
    "look like a TLS handshake": "--plain-http speaks to a registry that has no TLS",
    "proxyconnect": "correct https_proxy or http_proxy in the environment, or name the host in no_proxy",
    "failed to verify certificate": "set --ca-file to the certificate of the CA that signed it",
}
"""Part of Go's message → what to do."""


class _Failure(Exception):
    """A failed run of oras."""

    def __init__(self, words: str, error: RegistryError, *, may_pass: bool = True) -> None:
        super().__init__(words)
        self.words = words
        """The text of oras."""
        self.error = error
        self.may_pass = may_pass


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of a registry: ``host[:port]/path``."""

    host: str
    path: str

    def __str__(self) -> str:
        return f"{self.host}/{self.path}"


def parse_repository(text: str) -> Repository:
    """Parse the name of a repository. Raises UsageError; the name of a registry is required."""
    host, _, path = text.partition("/")
    is_host = "." in host or ":" in host or host == "localhost"
    if not is_host or not _HOST.fullmatch(host) or not _PATH.fullmatch(path):
        raise UsageError(
            f"{text!r} is not a repository", hint="give registry.example/path: a host, then lower case, digits, ., _, -"
        )
    return Repository(host, path)


def default_path() -> Path:
    """Return the path of the credentials of `docker login`."""
    folder = os.environ.get("DOCKER_CONFIG")
    return (Path(folder) if folder else Path.home() / ".docker") / "config.json"


def read_docker_config(path: Path, repository: Repository, *, must_exist: bool) -> Mapping[str, Any]:
    """Return the part of the Docker configuration at ``path`` for ``repository``, keyed by the registry's name, as oras
    needs it. The entry with the longest matching name wins, as for a kubelet; without one, oras runs a helper. Raises
    UsageError, which shows nothing of the file's content."""
    try:
        text = path.read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not must_exist:
            return {}
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    try:
        config = orjson.loads(text)
        by_place: dict[str, Any] = {}
        for name, found in (config.get("auths") or {}).items():
            place = name.removeprefix("https://").removeprefix("http://").rstrip("/")
            by_place[place.removesuffix("/v1").removesuffix("/v2")] = found  # old files add the path of an API
        places = [place for place in by_place if f"{repository}/".startswith(f"{place}/")]
        entry = by_place[max(places, key=len)] if places else {}
        helper = (config.get("credHelpers") or {}).get(repository.host) or config.get("credsStore")
        if entry.get("auth") and b":" not in base64.b64decode(entry["auth"], validate=True):
            raise ValueError
    except (ValueError, AttributeError, TypeError):
        raise UsageError(
            f"{path} is not a Docker configuration", hint='it is JSON with "auths": a Secret\'s key .dockerconfigjson'
        ) from None
    return (
        {"auths": {repository.host: entry}} if entry else {"credHelpers": {repository.host: helper}} if helper else {}
    )


class Registry:
    """The registry of ``repository``. Failed requests are retried for ``patience`` seconds."""

    def __init__(
        self,
        repository: Repository,
        docker_config: Mapping[str, Any],
        *,
        plain_http: bool,
        patience: float,
        ca_file: Path | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """``ca_file`` has CAs (PEM) to trust besides this machine's. Raises UsageError if it cannot be used, if
        credentials would cross a network in plain text, and if oras is missing."""
        if plain_http and docker_config and not is_loopback(f"http://{repository.host}"):
            raise UsageError(f"credentials for {repository.host} are not sent without TLS", hint="omit --plain-http")
        trust_also(ca_file, "--ca-file")
        self._program = shutil.which("oras") or ""
        if not self._program:
            raise UsageError(
                "oras, which lookupdb uses for registries, is not on PATH",
                hint="lookupdb's container image has it; https://oras.land/docs/installation says how to install it",
            )
        self.repository = repository
        self._patience, self._answer_seconds = patience, answer_seconds
        self._folder = TemporaryDirectory(prefix="lookupdb-")
        config = Path(self._folder.name, "config.json")
        config.write_bytes(orjson.dumps(docker_config))
        self._options = (f"--registry-config={config}", f"--plain-http={str(plain_http).lower()}")
        self._environment = dict(os.environ)
        if ca_file is not None:
            authorities = Path(self._folder.name, "authorities")
            authorities.mkdir()
            (authorities / "ca.pem").symlink_to(ca_file.absolute())
            folders = os.environ.get("SSL_CERT_DIR") or _GO_CA_FOLDERS
            self._environment["SSL_CERT_DIR"] = f"{folders}:{authorities}"

    def close(self) -> None:
        """Remove the credentials that oras was given."""
        self._folder.cleanup()

    def has_blob(self, blob: Blob) -> bool:
        """Return whether the repository holds the blob. Raises RegistryError."""
        return self._retried(lambda: self._has_blob(blob))

    def put_blob(self, blob: Blob, content: Callable[[], Iterable[bytes]]) -> bool:
        """Put the blob unless it is there; each attempt calls ``content()`` for its bytes. Return whether it was put.
        Raises RegistryError, and what ``content`` raises."""
        is_sent = False

        def put() -> None:
            nonlocal is_sent
            if not self._has_blob(blob):
                is_sent = True
                words = ("blob", "push", f"--size={blob.size}", f"{self.repository}@{blob.digest}", "-")
                self._run(f"put {blob.digest}", *words, content=content())

        self._retried(put)
        return is_sent

    def get_index(self, reference: str) -> bytes | None:
        """Return the index or manifest with the tag or digest ``reference``; None if there is none. Raises
        RegistryError."""
        name = f"{self.repository}{'@' if ':' in reference else ':'}{reference}"
        return self._retried(lambda: self._find(f"look for {reference}", "manifest", "fetch", name))

    def put_manifest(self, name: str, blob: Blob, content: bytes) -> None:
        """Put a manifest or an index under ``name``, a tag or its digest. Raises RegistryError."""
        target = f"{self.repository}{'@' if ':' in name else ':'}{name}"
        words = ("manifest", "push", f"--media-type={blob.media_type}", target, "-")
        self._retried(lambda: self._run(f"put {name}", *words, content=[content]))

    def _has_blob(self, blob: Blob) -> bool:
        words = ("blob", "fetch", "--descriptor", f"{self.repository}@{blob.digest}")
        found = self._find(f"look for {blob.digest}", *words)
        if found is not None and (size := orjson.loads(found)["size"]) != blob.size:
            raise RegistryError(
                f"{self.repository} says that {blob.digest} has {size} bytes, it has {blob.size}",
                hint="the registry's storage is damaged",
            )
        return found is not None

    def _find(self, action: str, *words: str) -> bytes | None:
        """Return the output of oras; None if oras reports that nothing is there."""
        try:
            return self._run(action, *words)
        except _Failure as failure:
            if _NOT_FOUND.fullmatch(failure.words):
                return None
            raise

    def _run(self, action: str, *words: str, content: Iterable[bytes] = ()) -> bytes:
        """Return the output of oras, which reads ``content``. Raises _Failure, and what ``content`` raises."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [self._program, *words, *self._options],
            stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env=self._environment,
        )  # fmt: skip
        with process:
            try:
                assert process.stdin is not None
                is_read = _send(process.stdin.fileno(), content, self._answer_seconds)
                output, trouble = process.communicate(timeout=self._answer_seconds if is_read else 0)
            except subprocess.TimeoutExpired as error:
                late = f"{self.repository.host} has not answered completely within {self._answer_seconds:g} seconds"
                raise _Failure(late, RegistryError(late)) from error
            finally:
                process.kill()  # no effect if it has ended by itself
        if process.returncode:
            raise self._explain(action, trouble.decode(errors="replace"))
        return output

    def _explain(self, action: str, trouble: str) -> _Failure:
        """Return the failure for ``trouble``, the error text of oras."""
        reason = " ".join(trouble.split())
        while (shorter := _NO_REASON.sub("", reason)) != reason:
            reason = shorter
        told = f"cannot {action} in {self.repository}: {_show_line(reason)}"
        if _DENIED.search(reason):
            denied = RegistryDenied(told, hint="give credentials that may push to it: --docker-config")
            return _Failure(trouble, denied, may_pass=False)
        is_final = bool(_FINAL.search(reason))
        general = "does the repository exist, and may it hold images of this size?" if is_final else None
        hint = next((hint for words, hint in _HINTS.items() if words in reason), general)
        return _Failure(trouble, RegistryError(told, hint=hint), may_pass=not is_final)

    def _retried(self, request: Callable[[], T]) -> T:
        """Return the result of ``request``; retry transient errors for ``patience`` seconds, and at least a few times,
        because an upload may take longer."""
        failing_since, backoff = 0.0, Backoff(_FIRST_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS)
        while True:
            try:
                return request()
            except _Failure as failure:
                failing_since, delay = failing_since or time.monotonic(), backoff.fail()
                has_waited = time.monotonic() + delay > failing_since + self._patience
                error = failure.error
                if not failure.may_pass:
                    raise error from None
                if has_waited and backoff.failures >= (_MIN_ATTEMPTS if self._patience else 1):
                    error.hint = error.hint or (
                        f"requests are retried for {self._patience:g} seconds: --registry-patience allows more"
                    )
                    raise error from None
                log.warning("the registry failed, retrying", extra={"reason": error.message, "delay": delay})
            time.sleep(delay)


def _send(pipe: int, content: Iterable[bytes], seconds: float) -> bool:
    """Write ``content`` until the reader stops. Return False if it reads nothing for ``seconds``."""
    os.set_blocking(pipe, False)
    poller = select.poll()
    poller.register(pipe, select.POLLOUT)
    for chunk in content:
        unsent = memoryview(chunk)
        while unsent:
            if not poller.poll(seconds * 1000):
                return False
            try:
                unsent = unsent[os.write(pipe, unsent[:_PIECE_BYTES]) :]
            except BrokenPipeError:  # it has ended, and says why
                return True
    return True


def _show_line(text: str) -> str:
    """Return ``text`` on one line, without secrets of URLs and control characters."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return _SECRET.sub("", line)[:_SHOWN_CHARACTERS]


_PARTS: Final = 3
"""The parts of a manifest: a configuration and two layers."""


@dataclass(frozen=True, slots=True)
class PushedImage:
    """The image of a shard in a registry. Present: its tag already named this content, and nothing was missing."""

    outcome: Literal["pushed", "present"]
    tag: str
    digest: str
    sent_bytes: int
    """Bytes of layers that the registry did not have."""


def push_shard(
    generation: StoredGeneration, shard: int, registry: Registry, patience: float, advance: Callable[[int], None]
) -> PushedImage:
    """Push the image of ``shard``; its tag comes last. ``advance`` gets the number of further bytes read, at most twice
    the file's size. Raises RegistryError, StoreError, CorruptFile."""
    manifest = plain_manifest(generation.manifest)
    tag = shard_tag(manifest.name, manifest.uid, manifest.generation, shard)
    there = registry.get_index(tag)
    if there is not None:
        if dict(read_annotations(there)) != render_annotations(manifest, shard):  # a tag always names the same content
            raise UsageError(
                f"{registry.repository}:{tag} already exists with other content",
                hint="does it belong to another installation? use another repository, or remove the tag there",
            )
        if _is_whole(there, registry):
            return PushedImage("present", tag, describe_blob(INDEX_TYPE, there).digest, 0)
    file = manifest.shards[shard].file, manifest.shards[shard].bytes

    def layer() -> Iterator[bytes]:
        content = read_shard(generation, generation.manifest.shards[shard], patience)
        return _counted(render_layer(*file, content), advance)

    blob = _measure(layer())
    image = render_image(manifest, shard, blob)
    sent = blob.size if registry.put_blob(blob, layer) else 0
    for small, content in image.blobs:
        if registry.put_blob(small, lambda content=content: [content]):  # type: ignore[misc]
            sent += small.size
    for document, text in list_documents(image):
        is_index = document.media_type == INDEX_TYPE
        registry.put_manifest(image.tag if is_index else document.digest, document, text)
    return PushedImage("pushed", image.tag, image.digest, sent)


def _is_whole(index: bytes, registry: Registry) -> bool:
    """Return whether the registry has all that ``index`` refers to: a retention policy may remove untagged manifests
    and leave the index. Raises RegistryError."""
    blobs: dict[str, Blob] = {}
    manifests = list_parts(index)[: len(ARCHITECTURES)]
    for described in manifests:
        manifest = registry.get_index(described.digest)
        if manifest is None or describe_blob(described.media_type, manifest) != described:
            return False
        parts = list_parts(manifest)
        if len(parts) != _PARTS:
            return False
        blobs |= {part.digest: part for part in parts}
    return len(manifests) == len(ARCHITECTURES) and all(map(registry.has_blob, blobs.values()))


def _measure(chunks: Iterator[bytes]) -> Blob:
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return Blob(LAYER_TYPE, f"sha256:{digest.hexdigest()}", size)

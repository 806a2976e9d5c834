"""Every error that a user can meet, and the exit code with which it ends a command.

A message says what was expected, what was found and where; ``hint`` says what to do. The command line and the operator
each map these errors in one place. Below are messages for errors of files and TLS, and for HTTP sent to a Redis port.
"""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path


class LookupdbError(Exception):
    """Base of all errors meant for users. Any other exception is a bug and shows a traceback."""

    exit_code: int = 1
    reason: str = "Failed"
    """CamelCase and stable: the operator uses it as a condition's reason."""
    may_pass: bool = True
    """True if a retry may succeed with the same manifest and source, for example when a disk has room again."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(LookupdbError):
    """A flag, an address or an argument that cannot be used."""

    exit_code = 2
    reason = "InvalidUsage"
    may_pass = False


class InvalidManifest(UsageError):
    """A LookupDataset manifest that does not fit the schema in crds/."""

    reason = "InvalidManifest"

    def __init__(self, message: str, *, hint: str | None = None, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems or (str(self),)
        """All problems of the manifest; the message holds the first ones."""


class FolderDenied(UsageError):
    """A folder of this machine cannot be written to. For a store's folder, see StoreDenied."""

    reason = "FolderDenied"


class EngineMissing(UsageError):
    """Something that spec.build.engine needs is missing on this machine, or too old."""

    reason = "EngineMissing"


class RightsMissing(EngineMissing):
    """The ServiceAccount of Spark's driver lacks rights that Spark needs on pods."""

    reason = "RightsMissing"
    may_pass = True


class ExecutorsRefused(EngineMissing):
    """Kubernetes did not admit Spark's executors, for example because of a quota."""

    reason = "ExecutorsRefused"
    may_pass = True


class BadSource(LookupdbError):
    """The source cannot be read, or one of its rows cannot be used."""

    exit_code = 3
    reason = "BadSource"
    may_pass = False


class SourceUnreadable(BadSource):
    """The source cannot be read now, whatever its content: its server is down, or it is being written to."""

    may_pass = True


class SourceMissing(SourceUnreadable):
    """A named file does not exist."""


class GateClosed(LookupdbError):
    """The generation failed a gate, and must not serve."""

    exit_code = 4
    reason = "GateClosed"
    may_pass = False


class StoreError(LookupdbError):
    """The store cannot be read or written."""

    exit_code = 5
    reason = "StoreUnavailable"


class StoreUnreachable(StoreError):
    """The store's server does not answer."""


class ListingTooLong(StoreError):
    """A folder has more objects or folders than lookupdb creates, too many to hold in memory."""


class StoreDenied(StoreError):
    """The credentials or their permissions are insufficient: a retry does not help."""

    reason = "StoreDenied"


class GenerationMissing(StoreError):
    """The store lacks the generation, or a part of it."""

    reason = "GenerationMissing"


class GenerationExists(StoreError):
    """The generation exists already, from another spec or another build."""

    reason = "GenerationExists"

    def __init__(self, message: str, *, hint: str | None = None, next_free: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.next_free = next_free
        """The first free generation: the one after the newest in the store. None if unknown."""


class AdoptionFailed(StoreError):
    """The store holds no generation of an earlier dataset to adopt."""

    reason = "AdoptionFailed"


class PushRejected(StoreError):
    """A pushed generation is damaged, or does not fit the spec."""

    reason = "PushRejected"
    may_pass = False


class NotOnVolume(StoreError):
    """The folder that a server should serve from does not have the generation or the shard yet, or cannot be read."""

    reason = "NotOnVolume"


class CorruptFile(StoreError):
    """A file that does not match its checksum or format version."""

    reason = "CorruptFile"


class RegistryError(LookupdbError):
    """An image registry does not answer, or answers incorrectly."""

    exit_code = 5
    reason = "RegistryUnavailable"


class RegistryDenied(RegistryError):
    """The credentials or their permissions are insufficient: a retry does not help."""

    reason = "RegistryDenied"


class NotEnoughRoom(LookupdbError):
    """Memory or disk does not suffice."""

    exit_code = 6
    reason = "NotEnoughRoom"


class SparkFailed(LookupdbError):
    """Spark could not finish a build: it lost executors, or a task of it failed too often."""

    reason = "SparkFailed"


class LimitExceeded(LookupdbError):
    """A condition of ``lookupdb load --fail-if`` holds."""

    exit_code = 7
    reason = "LimitExceeded"


class LookupFailed(LookupdbError):
    """A client's request could not be answered."""

    reason = "LookupFailed"


class KeyMissing(LookupFailed):
    """No record has the key."""

    exit_code = 3
    reason = "Missing"


class Unavailable(LookupFailed):
    """A shard or the router could not be reached: the key may or may not exist.

    ``reason`` is the router's (docs/reference/http-api.md), or the client's own if no router answered.
    """

    exit_code = 4
    reason = "Unavailable"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        keys: tuple[str, ...] = (),
        reason: str = "Unavailable",
        detail: str | None = None,
        shard: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.keys = keys
        """All keys of the call, if a client of the router raises this error: a router does not say which keys of a
        batch are unavailable, except in a partial answer."""
        self.reason = reason
        self.detail = message if detail is None else detail
        """A sentence for people."""
        self.shard = shard
        """The shard that cannot be reached, if there is one."""


class UnknownGeneration(LookupFailed):
    """The requested generation is not served, or not whole."""

    reason = "UnknownGeneration"

    def __init__(
        self, message: str, *, hint: str | None = None, generation: str = "", active: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.generation = generation
        """The requested generation."""
        self.active = active
        """The generation that answers requests that name none; several during a shard-by-shard rollout; empty if
        unknown."""


class RequestRefused(LookupFailed):
    """The router refuses the request, and would refuse it again: an invalid token, a wrong path, a batch that is too
    large. Or the client or the router rejects the other's certificate."""

    reason = "Refused"

    def __init__(
        self, message: str, *, hint: str | None = None, status: int = 0, problem: str = "", limit: int | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        """The HTTP status; 0 if certificates were not accepted."""
        self.problem = problem
        """The name of the problem, such as ``unauthenticated``; empty if the answer has none."""
        self.limit = limit
        """For ``too-many-keys``: the limit of a batch, if the router gives it."""


class InvalidAnswer(LookupFailed):
    """The server is not a router, or its answer is not well-formed. Nothing of the answer is used."""

    reason = "InvalidAnswer"


# Errors of a full disk and of files that cannot be opened.


DISK_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The error numbers of a full disk, an exhausted quota, and a file at its maximum size."""
OPEN_FILES_ERRNOS: Final = (errno.EMFILE, errno.ENFILE)
"""The error numbers for too many open files, of a process and of a machine."""
RAISE_OPEN_FILES: Final = "raise the hard limit (ulimit -Hn, or LimitNOFILE= of the container runtime)"
"""The hint for too many open files."""


def opening_error(path: Path, number: int) -> StoreError | NotEnoughRoom:
    """Return the error for a file that cannot be opened because of errno ``number``, whatever its content."""
    message = f"cannot open {path}: {os.strerror(number)}"
    if number in OPEN_FILES_ERRNOS:
        return NotEnoughRoom(message, hint=RAISE_OPEN_FILES)
    if number == errno.ENOMEM:
        hint = "give this process more memory, address space (ulimit -v) or memory maps (vm.max_map_count)"
        return NotEnoughRoom(message, hint=hint)
    if number in (errno.EACCES, errno.EPERM):
        return StoreError(message, hint="grant this user read access to it")
    return StoreError(message)


def reading_error(path: Path, offset: int, number: int) -> StoreError:
    """Return the error for a file that cannot be read from byte ``offset`` on because of errno ``number``."""
    return StoreError(
        f"cannot read {path} from byte {offset} on: {os.strerror(number)}",
        hint="check the disk, or the server of the volume",
    )


# Descriptions of TLS errors, for clients of routers and of other servers. This code does not import ssl.


_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
"""OpenSSL's names, in all its versions, for a reply that is not TLS."""
_SSL_ERROR_EOF: Final = 8
_NONE_SHOWN: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "wants its clients to have a certificate",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "refuses the handshake; perhaps it wants its clients to have a certificate",
}
"""OpenSSL's names for the alert of a server that got no client certificate: in TLS 1.3, and the ambiguous one before
it."""
_NOT_ACCEPTED: Final = re.compile(
    r"ALERT_(BAD_CERTIFICATE|UNKNOWN_CA|UNSUPPORTED_CERTIFICATE|CERTIFICATE_(?:EXPIRED|REVOKED|UNKNOWN))$"
)
"""OpenSSL's name for the alert about a certificate that the server does not accept."""
_NOT_VALID_NOW: Final = (9, 10)
_ANOTHER_NAME: Final = (62, 64)
"""X509_V_ERR_… of OpenSSL: not valid yet, expired; another host's name, another address."""


def speaks_no_tls(error: BaseException) -> bool:
    """Return whether ``error``, of ssl, says that the server's answer was not TLS."""
    return getattr(error, "reason", None) in _NO_TLS


def has_ended_early(error: BaseException) -> bool:
    """Return whether ``error``, of ssl, says that the peer closed the connection without notice."""
    return hasattr(error, "library") and getattr(error, "errno", None) == _SSL_ERROR_EOF


def find_certificate_refusal(error: BaseException, *, has_shown_one: bool) -> str | None:
    """Return how a server refuses the client's certificate; None for another ``error``."""
    reason = getattr(error, "reason", None) or ""
    if not isinstance(reason, str):
        return None
    if not has_shown_one and reason in _NONE_SHOWN:
        return _NONE_SHOWN[reason]
    if refused := _NOT_ACCEPTED.search(reason):
        return f"does not accept this client's certificate ({refused[1].replace('_', ' ').lower()})"
    return None


def is_not_valid_now(error: BaseException) -> bool:
    """Return whether a server's certificate was rejected only because of its dates."""
    return getattr(error, "verify_code", None) in _NOT_VALID_NOW


def find_trust_hint(error: BaseException) -> str | None:
    """Return a hint about a server's certificate that was not trusted; None if its CA is unknown here."""
    code = getattr(error, "verify_code", None)
    if code in _NOT_VALID_NOW:
        return "renew it, or correct the clock of this machine"
    return "use a name that is in the certificate" if code in _ANOTHER_NAME else None


def describe_tls_error(error: BaseException) -> str:
    """Return OpenSSL's message for any other TLS error, without its module and source line."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str) and reason:
        return reason.replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)


# Recognize a Redis server's answer to an HTTP request, for commands and clients.


_REPLY: Final = re.compile(rb"-[A-Z]+ |[+$:*]")

REDIS_HINT: Final = (
    "this looks like a Redis port, for example 6379. Lookups by HTTP use another port: 80 or 443 of a Service, and 8080"
    " or --port of a router. `lookupdb up` prints it in its curl command"
)


def begins_redis_reply(answer: bytes) -> bool:
    """Return whether ``answer``, of which the first line is enough, is a Redis server's refusal of an HTTP request."""
    return _REPLY.match(answer) is not None

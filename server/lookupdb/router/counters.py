"""The counters of a router worker in shared memory (see ``process.worker``), with the metric help of each.

A metric is called ``lookupdb_router_`` and the name, with ``_total`` for counters. A router of several datasets has a
block of counters for each, behind one for what concerns no dataset, such as connections.
"""

from __future__ import annotations

from typing import Final

from lookupdb.process.worker import histogram_names

CODES: Final = (*(200, 204, 304, 400, 401, 403, 404, 405, 406, 408, 412, 413, 414, 415, 417, 431, 500, 503, 505),)
"""All statuses of answers (see ``http.problems``)."""
REQUESTS: Final = {f"requests_{code}": str(code) for code in CODES}
"""Counters of answered requests, and the value of label ``code`` of ``lookupdb_router_requests_total`` for each."""

REQUESTS_HELP: Final = "HTTP requests answered, by status. Probes are not counted."

PROTOCOLS: Final = ("http", "resp")
ENDPOINTS: Final = ("lookup", "batch", "other")
OUTCOMES: Final = ("ok", "refused", "failed")
DURATIONS: Final = {
    (protocol, endpoint, outcome): histogram_names(f"{protocol}_{endpoint}_{outcome}")
    for protocol in PROTOCOLS
    for endpoint in ENDPOINTS
    for outcome in OUTCOMES
}
"""Histograms of requests by protocol, endpoint and outcome. The outcomes of an endpoint are adjacent: ``REFUSED`` and
``FAILED`` are their distances from ``ok``, the first.

``lookup`` is a lookup of one key, ``batch`` a POST, an MGET and the like, ``other`` the rest. ``ok``: answered, even if
no record has the key. ``refused``: the client's fault, for example a deadline that is too short. ``failed``: the
router's or a shard's fault; a batch fails with the first key that is unavailable.

A request arrives with the read of its first byte: all requests that arrive in one read arrived together. It ends when
the last byte of its answer is passed to the system, or waits for a client that reads slowly. Probes are not counted,
nor requests of clients that left before the answer."""
DURATIONS_HELP: Final = (
    "Seconds from reading a request's first byte to sending the last byte of its answer, for every request. Probes are "
    "not counted."
)

COUNTERS: Final = {
    "connections_accepted": "Client connections accepted.",
    "connections_refused": "Client connections refused because there were too many.",
    "requests_refused": "Requests that were invalid HTTP or RESP, or over a limit; their connection was closed.",
    "tls_handshakes_failed": "TLS handshakes that failed or that the client did not finish.",
    "tls_certificates_refused": "Times that a changed certificate, key or client CA file could not be used.",
    "requests_unauthenticated": "HTTP requests answered 401 and AUTH commands rejected: token missing or not accepted.",
    "requests_forbidden": "HTTP requests answered 403 and AUTH commands of service accounts that may not look up.",
    "clients_timed_out": "Client connections closed because the client sent or read too slowly.",
    "resp_errors": "Redis commands answered with an error.",
    "keys_found": "Keys for which a value was found.",
    "keys_missing": "Keys that no record has.",
    "keys_unavailable": "Keys of the active generation that were unavailable.",
    "client_deadline_keys_unavailable": "Keys that timed out because the client's deadline was shorter than the "
    "router's.",
    "candidate_keys_unavailable": "Keys of generations requested by name that were unavailable.",
    "keys_damaged": "Keys whose value an endpoint could not read: its shard file is damaged.",
    "requests_overloaded": "Requests refused or given up because the worker's memory budget was used up.",
    "batches": "Batches sent to endpoints. keys_asked / batches is the mean size of a batch.",
    "keys_asked": "Keys sent to endpoints, including second tries.",
    "retries": "Keys sent again because the first try failed or took half of the deadline.",
    "hedges": "Keys also sent to a second replica because the first took longer than the hedge delay.",
    "queue_full": "Keys refused because an endpoint's queue was full.",
    "deadlines": "Keys whose deadline passed without an answer.",
    "endpoints_broken": "Times that the connection to an endpoint in use broke.",
    "proofs_failed": "Times that an endpoint did not serve what the routing table says, or a password failed.",
    "spans_exported": "Spans of sampled requests that the collector of traces accepted.",
    "spans_dropped": "Spans of sampled requests that were dropped: the queue was full, or the collector failed.",
    "reloads": "Routing tables put into effect.",
    "reloads_refused": "Routing tables rejected: invalid, not newer than the one in effect, or of another dataset.",
}

GAUGES: Final = {
    "connections": "Open client connections.",
    "budget_bytes": "Bytes of requests and answers that the workers may hold.",
    "budget_used_bytes": "Bytes of requests and answers that the workers hold now.",
    "endpoints_ready": "Connected and verified endpoints of the active generation, summed over workers. During a "
    "shard-by-shard rollout: of all generations that serve a shard.",
    "endpoints_unready": "Other endpoints of the active generation, summed over workers.",
    "candidate_endpoints_ready": "Connected and verified endpoints of generations requested by name.",
    "candidate_endpoints_unready": "Other endpoints of generations requested by name.",
}

BATCH_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""The upper bounds of the histogram's buckets; the last bucket has none."""
BATCH_SECONDS_HELP: Final = "Seconds from sending a batch to its answer, for every 16th batch to each endpoint."
BATCH_BUCKETS: Final = tuple(f"batch_bucket_{number}" for number in range(len(BATCH_SECONDS) + 1))
"""Number of batches between the previous bound and this one. The buckets are adjacent in a slot."""
BATCH_MICROSECONDS: Final = "batch_microseconds"

TABLE_VERSION: Final = "table_version"
"""Gauge per worker; the metric is the lowest, which all workers have reached."""

CERTIFICATE_EXPIRY: Final = "tls_certificate_expiry_timestamp_seconds"
"""Gauge per worker; the metric is the lowest."""

NAMES: Final = (
    *(*REQUESTS, *COUNTERS, *GAUGES, *BATCH_BUCKETS, BATCH_MICROSECONDS, TABLE_VERSION, CERTIFICATE_EXPIRY),
    *(name for names in DURATIONS.values() for name in names),
)

INDEX: Final = {name: place for place, name in enumerate(NAMES)}
"""The place of each name: ``counters[INDEX["keys_found"]] += 1``."""

REFUSED: Final = len(histogram_names(""))
FAILED: Final = 2 * REFUSED


def find_histogram(protocol: str, endpoint: str) -> int:
    """Return the place of the histogram of requests whose outcome is ``ok``."""
    return INDEX[DURATIONS[protocol, endpoint, "ok"][0]]


def count_requests(counters: memoryview, protocol: str) -> int:
    """Return the number of requests over ``protocol``: each command of a pipeline is one."""
    buckets = (names[:-1] for (name, *_), names in DURATIONS.items() if name == protocol)
    return sum(counters[INDEX[bucket]] for names in buckets for bucket in names)

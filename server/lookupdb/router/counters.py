"""What a router worker counts, in shared memory (see ``runtime.counters``), and the sentence that explains each.

``lookupdb_router_`` and the name, with ``_total`` for counters, is the metric; the reference lists them.
"""

from __future__ import annotations

from typing import Final

REQUESTS: Final = {
    "requests_2xx": "2xx",
    "requests_3xx": "3xx",
    "requests_4xx": "4xx",
    "requests_5xx": "5xx",
}
"""Counters of requests answered → the value of label ``status`` of ``lookupdb_router_requests_total``."""

REQUESTS_HELP: Final = "HTTP requests answered, by class of status. Probes are not counted."

COUNTERS: Final = {
    "connections_accepted": "Client connections accepted.",
    "connections_refused": "Client connections closed at once because there were too many.",
    "requests_refused": "Requests that were not HTTP or RESP as it should be, or over a limit; their connection "
    "was closed.",
    "tls_handshakes_failed": "TLS handshakes that failed, or that the client did not end.",
    "tls_certificates_refused": "Times that a certificate, its key or the clients' authorities had changed and could "
    "not be used.",
    "requests_unauthenticated": "Requests answered 401, or AUTH: without a token, or with one that is not accepted.",
    "requests_forbidden": "Requests answered 403, or AUTH: of service accounts that may not look up.",
    "clients_timed_out": "Client connections closed because the client was too slow, sending or reading.",
    "resp_commands": "Commands of Redis' protocol answered, each of a pipeline.",
    "resp_errors": "The same, of those that were answered with an error.",
    "keys_found": "Keys for which a value was found.",
    "keys_missing": "Keys that no record has.",
    "keys_unavailable": "Keys of which nothing could be said, of the active generation.",
    "client_deadline_keys_unavailable": "The same of keys that a server was asked for, and for which a client waited "
    "for less than the router's deadline.",
    "candidate_keys_unavailable": "Keys of which nothing could be said, of generations that were asked for by name.",
    "keys_damaged": "Keys whose value an endpoint could not read: its shard file is damaged.",
    "requests_overloaded": "Requests refused, or given up, because the worker's memory budget is used up.",
    "batches": "Batches sent to endpoints. keys_asked / batches is the mean size of a batch.",
    "keys_asked": "Keys sent to endpoints, second tries included.",
    "retries": "Keys asked again because a first try failed or took half of the deadline.",
    "hedges": "Keys asked of a second replica too because the first took longer than the hedge delay.",
    "queue_full": "Keys refused because an endpoint's queue was full.",
    "deadlines": "Keys whose deadline passed without an answer.",
    "endpoints_broken": "Times that a connection to an endpoint that was in use broke.",
    "proofs_failed": "Times that an endpoint proved to serve something else than the routing table says.",
    "reloads": "Routing tables put into effect.",
    "reloads_refused": "Routing tables refused: not valid, older than the one in effect, or another dataset's.",
}

GAUGES: Final = {
    "connections": "Open client connections.",
    "budget_bytes": "Bytes of requests and answers that the workers may hold.",
    "budget_used_bytes": "Bytes of requests and answers that they hold now.",
    "endpoints_ready": "Endpoints of the active generation that are connected and proven, summed over workers. In a "
    "mixed routing table: of all that serve its shards.",
    "endpoints_unready": "Endpoints of the active generation that are not, summed over workers.",
    "candidate_endpoints_ready": "The same of the generations that are asked for by name: connected and proven.",
    "candidate_endpoints_unready": "The same of the generations that are asked for by name: not proven.",
}

BATCH_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""The upper bounds of the histogram's buckets, but for the last one, which has none."""
BATCH_SECONDS_HELP: Final = "Seconds from sending a batch to its answer, of every 16th batch to each endpoint."
BATCH_BUCKETS: Final = tuple(f"batch_bucket_{number}" for number in range(len(BATCH_SECONDS) + 1))
"""How many batches took longer than the bound before and no longer than this one. They stand side by side in a slot."""
BATCH_MICROSECONDS: Final = "batch_microseconds"
"""The sum of what these took."""

TABLE_VERSION: Final = "table_version"
"""A gauge of each worker's own; the metric is the lowest, because that is what the router can be relied on for."""

CERTIFICATE_EXPIRY: Final = "tls_certificate_expiry_timestamp_seconds"
"""A gauge of each worker's own, too: the metric is the lowest."""

NAMES: Final = (*REQUESTS, *COUNTERS, *GAUGES, *BATCH_BUCKETS, BATCH_MICROSECONDS, TABLE_VERSION, CERTIFICATE_EXPIRY)
"""All items of a worker's slot."""

INDEX: Final = {name: place for place, name in enumerate(NAMES)}
"""Name → place in a slot: ``slot[INDEX["keys_found"]] += 1``."""

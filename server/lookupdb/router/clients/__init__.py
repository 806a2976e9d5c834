"""The common part of both client protocols: the ports, the life of a connection, TLS.

front  accepts connections on the public ports, closes those past their deadline, drains
life   the phases of a connection, its deadline, and everything that ends it
tls    the transport between a client's socket and its connection; the certificates and their reload
"""

from __future__ import annotations

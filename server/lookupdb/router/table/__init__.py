"""The routing table: parse, check, connect, put into effect.

routing_table  parses the file, and watches it
cutover        puts a new table into effect once its endpoints are verified
"""

from __future__ import annotations

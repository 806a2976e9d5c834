"""The shard server: one shard file, answered over RESP (the Redis protocol) by a supervised fleet of workers.

``worker`` is a worker's whole life, ``loop`` what it does all day, ``connection`` one client, ``resp`` the wire,
``commands`` what can be asked.
``server`` is the supervisor's part; ``verify`` proves the file before anyone maps it.
"""

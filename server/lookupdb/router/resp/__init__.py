"""RESP on the public port: commands of Redis clients become exchanges, which are answered in order.

connection  one client: its commands, and their replies in order
reader      cuts bytes into lookups and other commands
exchanges   the commands, and the exchanges that look keys up for them
"""

"""Every object that the operator writes, from data to data: no client, no clock."""

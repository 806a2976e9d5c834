"""The tools of stories: a namespace of their own, kubectl, and lookups and load from inside the cluster.

A story is a test that takes the fixture ``story`` (see ``story.Story``). It begins with ``from e2e.support…`` and needs
nothing else: fixtures and the report of a failure come from ``e2e.support.plugin``, which the root conftest names.
"""

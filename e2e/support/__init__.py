"""Tools of scenarios: a namespace, kubectl, and lookups and load from inside the cluster.

A scenario is a test that takes the fixture ``scenario`` (see ``scenario.Scenario``) and imports from ``e2e.support``.
Fixtures and failure reports come from ``e2e.support.plugin``, which the root conftest loads.
"""

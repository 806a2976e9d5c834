"""What a release is made of, where it comes from, and what is known against it: bill of materials, provenance, audit.

locks        what the lock files name: Python packages and crates
sbom         the image's bill of materials, CycloneDX
dsse         signed envelopes
provenance   which sources and which builder a release comes from, in-toto and SLSA
audit        locked packages against the advisories of OSV

Nothing here runs in a cluster. docs/operations/supply-chain.md tells how it is used.
"""

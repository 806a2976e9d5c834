"""The contents and the provenance of a release.

sbom             the image's bill of materials, CycloneDX
provenance       the statement which sources and which builder a release comes from, in-toto and SLSA
sign             has cosign sign it
audit            has osv-scanner hold what is locked against the advisories of OSV
osv-scanner.toml advisories that do not concern us
tools            pins cosign and osv-scanner

Nothing here runs in a cluster. docs/operations/supply-chain.md describes how to use it.
"""

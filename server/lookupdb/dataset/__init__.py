"""A dataset as its manifest describes it.

spec      the LookupDataset as typed records
schema    the CRD's fields, and the check of a manifest against them
schedule  times of refreshes: cron expressions and time zones
"""

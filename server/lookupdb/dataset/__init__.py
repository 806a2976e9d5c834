"""A dataset as its manifest describes it: the resource's spec, its schema (the CRD) and its schedule.

spec      what a LookupDataset asks for, as typed records
schema    what the CRD says about each field, and the check of a manifest against it
schedule  when a dataset is refreshed: cron expressions and time zones
"""

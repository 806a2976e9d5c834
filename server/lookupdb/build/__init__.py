"""`lookupdb build`: a source becomes one generation.

The records side reads and sorts:

    objects = source.resolve(spec, volume=None)         # what there is: location lists files and objects
    source.fingerprint(objects)                         # changes when the source does; None: not known yet
    files = fetch.fetch(objects, scratch, progress)     # plain local files; inflate decompresses
    with records.SortedRecords(spec, files, scratch, memory_limit, threads, progress) as sorted_records:
        sorted_records.rejected, sorted_records.rows, sorted_records.sample
        for batch in sorted_records: ...                # [(encoded key, place, value), …]
        sorted_records.origin(place)                    # (file number, row)

``slices`` cuts a large source into pieces. ``reading`` reads one, in this process or, told by a ``job``, in one of the
processes of a ``crew``. ``parse_csv``, ``parse_json`` and ``parse_parquet`` make rows, ``rows`` and ``objects`` keys
and values of them, ``sorter`` sorts out of core with ``runs``, ``sample`` keeps values to train the dictionary on,
``budget`` divides the memory limit. ``earlier`` looks at what the store holds already.

The writer side turns the sorted records into shard files: ``duplicates``, ``compress``, ``write``, then ``gates``.
"""

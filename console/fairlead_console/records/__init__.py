"""Records of a topic: how pages select them, how they are found, and how their contents are shown.

`scan`, `samples` and `one` read with a consumer of the SDK: `scan` searches a range within a budget of bytes, `samples`
follows the end of a topic and reads only as much as a person can see, and `one` reads one record. `uploads` converts
typed text or a file to records. The other modules are pure. Filters work on the columns of a batch; only records that
are shown become Python objects.
"""

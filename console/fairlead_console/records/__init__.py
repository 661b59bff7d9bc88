"""Records of a topic: which ones a page asks for, how they are found, and how their contents are shown.

`scan`, `samples` and `one` read with a consumer of the SDK: `scan` searches a range inside a budget of bytes, `samples`
follows the end of a topic and reads only as much as a person can see, `one` reads one record. `uploads` turns what a
person has typed or a file into records. The other modules are pure. Filters work on the columns of a batch; only
records that are shown become Python objects.
"""

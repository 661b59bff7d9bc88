"""Reading of partitions: cursors, prefetching, decoded batches, offsets by time.

The package is public for connectors, which read fixed ranges or plan by offsets instead of opening a `Consumer`:

- `connection`: `ReadConnection`, the connection to a cluster that the other classes share.
- `cursors`: `Cursor`, a position in one partition; `Prefetch`, the buffer of all cursors, whose parameter
  `stops` sets the end offsets of partitions; `Fetched`, an entry of the buffer.
- `fetcher`: `Fetcher`, the task that keeps a `Prefetch` full; the property `trouble` is the error that is being
  retried.
- `reader`: `batches_in`, the checked batches of a `Fetched`.
- `offsets`: `OffsetLookup`, which finds the offset of a position: earliest, latest, a time.

A connector uses these classes but does not extend them, and imports no module of `fairlead.connection`. A connector
without its own event loop runs these classes on a `LoopThread` of `fairlead.blocking.loop_thread`.
"""

"""Rules of transactions that need no store, log or clock (protocol section 7).

A transaction is identified by a producer id and a producer epoch. Any broker may change the record of the producer in
the coordination store, with a put that compares the record's revision. `decisions` computes the changed records and the
answers, `outcomes` derives the fate of a transaction in a partition from a record, and `looking` schedules when the
leaders of partitions read records.
"""

from __future__ import annotations

"""Rules of transactions that need no store, log or clock (protocol section 7).

A transaction is a producer id and a producer epoch. Its record in the coordination store is changed by any broker, by a
put that compares the revision. `decisions` says what to write and what to answer, `outcomes` what a record says about a
transaction in a partition, and `looking` when the leaders of partitions read records.
"""

from __future__ import annotations

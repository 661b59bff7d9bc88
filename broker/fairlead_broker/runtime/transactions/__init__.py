"""Transactions of producers on one broker: decisions in the store, ends in partitions, and looks at open transactions.

The package carries out what the pure package `transactions` decides. It must not know HTTP.
"""

from __future__ import annotations

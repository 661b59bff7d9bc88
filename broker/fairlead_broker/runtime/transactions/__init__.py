"""Transactions of producers on one broker: decisions in the store, ends in partitions, and looks at open transactions.

The package executes the decisions of the pure package `transactions`, and must not depend on HTTP.
"""

from __future__ import annotations

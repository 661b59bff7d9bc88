"""Transactions of producers on one broker: stores decisions, ends transactions in partitions, checks open transactions.

The package executes the decisions of the pure package `transactions`, and must not depend on HTTP.
"""

from __future__ import annotations

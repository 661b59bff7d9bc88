"""Names of the limits of quotas, and of their subjects (rules Q1 and Q2). This module must not depend on bodies."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

TOPICS: Final = "topics:"
"""Prefix of a subject that is a pattern of topics. A subject without this prefix is a pattern of principals."""


class Limit(StrEnum):
    """Limit of a quota, which applies to the whole cluster."""

    PRODUCE_BYTES = "produce_bytes_per_second"
    FETCH_BYTES = "fetch_bytes_per_second"
    REQUESTS = "requests_per_second"
    CONCURRENT_REQUESTS = "concurrent_requests"
    PARTITIONS = "partitions"
    """Number of partitions of all topics that a pattern matches."""


RATES: Final = (Limit.PRODUCE_BYTES, Limit.FETCH_BYTES, Limit.REQUESTS)
"""Limits of a rate per second."""

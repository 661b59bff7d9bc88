"""The asyncio shell of the broker: one task owns one partition; runs what the pure rooms decide.

`server` calls `BrokerRuntime` and gets values and `ProblemError`s; `wiring` starts and stops it. Knows the log, the
coordination room and the clock; must not know HTTP.
"""

from __future__ import annotations

from fairlead_broker.runtime.broker import BrokerRuntime, RuntimeState
from fairlead_broker.runtime.requests import (
    AppendResult,
    FetchResult,
    FetchSpec,
    KeyedRequest,
    PartitionFetch,
    PartitionHandle,
    ProduceItem,
)
from fairlead_broker.runtime.topic_views import TopicView

__all__ = [
    "AppendResult",
    "BrokerRuntime",
    "FetchResult",
    "FetchSpec",
    "KeyedRequest",
    "PartitionFetch",
    "PartitionHandle",
    "ProduceItem",
    "RuntimeState",
    "TopicView",
]

"""The asyncio shell of the broker: one task owns one partition; runs what the pure rooms decide.

`server` uses `Broker` and its parts, and gets values and `ProblemError`s; `wiring` opens and closes it. Knows the log,
the coordination room and the clock; must not know HTTP.
"""

from __future__ import annotations

from fairlead_broker.runtime.broker import Broker, BrokerState, Phase
from fairlead_broker.runtime.leading.producing import ProduceItem
from fairlead_broker.runtime.requests import (
    AppendResult,
    FetchResult,
    FetchSpec,
    KeyedRequest,
    PartitionFetch,
)
from fairlead_broker.runtime.topic_views import TopicView

__all__ = [
    "AppendResult",
    "Broker",
    "BrokerState",
    "FetchResult",
    "FetchSpec",
    "KeyedRequest",
    "PartitionFetch",
    "Phase",
    "ProduceItem",
    "TopicView",
]

"""The asyncio shell of the broker.

Each partition that this broker leads is owned by one task, which executes the decisions of the packages that perform no
I/O. `server` calls `Broker` and its components, which return values or raise `ProblemError`. `wiring` opens and closes
the broker. The package uses the log, the coordination package and the clock; the package must not use HTTP.
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

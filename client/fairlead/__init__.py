"""The Fairlead SDK: producer, consumer and admin client over HTTP/2, async first.

Every public name can be imported from this package; typed errors are in `fairlead.errors`. Connectors build on
`fairlead.reading`. All other modules may change between releases. Names are imported on first use, so that a program
loads Arrow and the HTTP client only if the program needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead import errors
    from fairlead.admin import Admin
    from fairlead.consumer import Consumer
    from fairlead.consuming_transactions import ConsumingTransaction, exactly_once
    from fairlead.errors import FairleadError
    from fairlead.group.session import Membership
    from fairlead.group.settings import CommitMode
    from fairlead.producer import Producer
    from fairlead.producing.delivery import BatchDelivery, BatchMetadata, Delivery, RecordMetadata
    from fairlead.producing.holding import ProducerMetrics
    from fairlead.reading.offsets import OffsetAndTimestamp
    from fairlead.records import ConsumerBatch, Record
    from fairlead.settings import OffsetPolicy
    from fairlead.table import Table
    from fairlead.topic_partition import TopicPartition
    from fairlead_api.identifiers import Acks

__all__ = [
    "Acks",
    "Admin",
    "BatchDelivery",
    "BatchMetadata",
    "CommitMode",
    "Consumer",
    "ConsumerBatch",
    "ConsumingTransaction",
    "Delivery",
    "FairleadError",
    "Membership",
    "OffsetAndTimestamp",
    "OffsetPolicy",
    "Producer",
    "ProducerMetrics",
    "Record",
    "RecordMetadata",
    "Table",
    "TopicPartition",
    "errors",
    "exactly_once",
]

_HOMES = {
    "Acks": "fairlead_api.identifiers",
    "Admin": "fairlead.admin",
    "BatchDelivery": "fairlead.producing.delivery",
    "BatchMetadata": "fairlead.producing.delivery",
    "CommitMode": "fairlead.group.settings",
    "Consumer": "fairlead.consumer",
    "ConsumerBatch": "fairlead.records",
    "ConsumingTransaction": "fairlead.consuming_transactions",
    "Delivery": "fairlead.producing.delivery",
    "FairleadError": "fairlead.errors",
    "Membership": "fairlead.group.session",
    "OffsetAndTimestamp": "fairlead.reading.offsets",
    "OffsetPolicy": "fairlead.settings",
    "Producer": "fairlead.producer",
    "ProducerMetrics": "fairlead.producing.holding",
    "Record": "fairlead.records",
    "RecordMetadata": "fairlead.producing.delivery",
    "Table": "fairlead.table",
    "TopicPartition": "fairlead.topic_partition",
    "exactly_once": "fairlead.consuming_transactions",
}

# If type checkers saw `__getattr__`, they would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name on its first use."""
        if name == "errors":
            return import_module("fairlead.errors")
        home = _HOMES.get(name)
        if home is None:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        found = globals()[name] = getattr(import_module(home), name)
        return found

    def __dir__() -> list[str]:
        """Return the public names, imported or not."""
        return sorted({*globals(), *__all__})

"""Names of producers that have become idle."""

from __future__ import annotations

import structlog

from fairlead_api.batch.batches import ProducerStamp, encode
from fairlead_api.batch.columns import record_batch
from fairlead_api.identifiers import ProducerId, TimestampUs
from fairlead_broker.clock import SystemClock
from fairlead_broker.coordination.producer_registry import NAME_IDLE_US, ProducerRegistry
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.hosting.upkeep import ProducerNames
from runtime_kit import topic


class LaterClock(SystemClock):
    """The clocks of the system, moved forward by `seconds`."""

    seconds = 0

    def now_us(self) -> TimestampUs:
        """Return the wall-clock time, moved forward."""
        return TimestampUs(super().now_us() + self.seconds * 1_000_000)

    def monotonic(self) -> float:
        """Return the monotonic time, moved forward."""
        return super().monotonic() + self.seconds


async def test_a_name_whose_producer_still_writes_is_kept(runtime: Broker) -> None:
    """The name of a producer that still writes is kept, and a producer is idle after a day without a batch."""
    flights = await topic(runtime)
    writing = await runtime.allocate_producer("writing")
    silent = await runtime.allocate_producer("silent")
    columns = record_batch([b"a"], default_timestamp_us=SystemClock().now_us())
    await flights.produce_batch(encode(columns, producer=ProducerStamp(writing.producer_id, 0, 0)).to_bytes())
    clock = LaterClock()
    registry = ProducerRegistry(runtime.entry.coordination, runtime.metadata.keys, clock)
    names = ProducerNames(registry, runtime.replicas, structlog.get_logger())
    clock.seconds = NAME_IDLE_US // 1_000_000 + 1

    dropped = await names.forget_idle()
    again = await runtime.allocate_producer("writing")
    fresh = await runtime.allocate_producer("silent")

    assert dropped == 1
    assert (again.producer_id, again.producer_epoch) == (writing.producer_id, 1)
    assert fresh.producer_id != silent.producer_id
    assert not flights.handle().knows_producer(ProducerId(silent.producer_id))

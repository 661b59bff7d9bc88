"""Components of a broker that exist before it has entered its cluster: threads, supervised tasks, budgets, metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairlead_broker.clock import Clock
from fairlead_broker.runtime.engine.budget import AnswerBudget
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.engine.loop_lag import LoopLag
from fairlead_broker.runtime.engine.supervisor import Supervisor
from fairlead_broker.runtime.leading.producing import ByteBudget
from fairlead_broker.runtime.meters import BrokerMeters
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.telemetry import Log, Telemetry


@dataclass(frozen=True, slots=True)
class Engine:
    """Components of a broker that do not depend on partitions."""

    settings: BrokerSettings
    telemetry: Telemetry
    clock: Clock
    new_id: Callable[[], str]
    """Function that returns a random version 4 UUID, and the only source of randomness in a broker."""
    log: Log
    supervisor: Supervisor
    disk: DiskPool
    opening: DiskPool
    """Thread pool that opens and recovers logs."""
    validation: DiskPool
    produce_budget: ByteBudget
    answers: AnswerBudget
    loop_lag: LoopLag
    meters: BrokerMeters


def build_engine(
    settings: BrokerSettings, telemetry: Telemetry, clock: Clock, new_id: Callable[[], str]
) -> Engine:
    """Build the engine of a broker, without starting the supervisor and the measurement of the loop lag."""
    limits = settings.limits
    return Engine(
        settings=settings,
        telemetry=telemetry,
        clock=clock,
        new_id=new_id,
        log=telemetry.log.bind(broker=settings.id),
        supervisor=Supervisor(),
        disk=DiskPool("disk", limits.disk_threads),
        opening=DiskPool("opening", limits.open_partition_threads, patient=True),
        validation=DiskPool("validation", limits.validation_threads),
        produce_budget=ByteBudget(limits.produce_bytes_max),
        answers=AnswerBudget(
            limits.answers_bytes_max, stall_seconds_max=limits.crowded_stall_seconds_max, now=clock.monotonic
        ),
        loop_lag=LoopLag(telemetry.metric("fairlead_event_loop_lag_seconds").observe),
        meters=BrokerMeters(telemetry),
    )

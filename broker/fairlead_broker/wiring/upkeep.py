"""Periodic work of a broker, and its background tasks."""

from __future__ import annotations

import secrets  # noqa: TID251 - the numbers of hash functions are drawn here
from dataclasses import dataclass
from typing import Final

from fairlead_broker.controlling.failure_watch import FailureWatch
from fairlead_broker.controlling.housekeeping import Housekeeping
from fairlead_broker.peers import presence
from fairlead_broker.runtime.audit_log import AuditQueue
from fairlead_broker.runtime.audit_topic import AuditTopic, TopicAccess
from fairlead_broker.runtime.configs import ClusterConfigFollower
from fairlead_broker.runtime.groups.upkeep import GroupUpkeep
from fairlead_broker.runtime.hosting.cleaner import Cleaner, CleanerSettings
from fairlead_broker.runtime.hosting.cleaner_meters import CleanerMeters
from fairlead_broker.runtime.hosting.scrub import Scrub
from fairlead_broker.runtime.hosting.upkeep import ProducerNames, Upkeep
from fairlead_broker.runtime.leading.retention import Retention
from fairlead_broker.runtime.lifecycle.cluster_entry import Entry
from fairlead_broker.runtime.transactions.idle import IdleTransactions
from fairlead_broker.wiring.calls import CallParts
from fairlead_broker.wiring.engine import Engine
from fairlead_broker.wiring.replicas import ReplicaParts


@dataclass(frozen=True, slots=True)
class UpkeepParts:
    """Periodic work on the data directory."""

    upkeep: Upkeep
    scrub: Scrub
    retention: Retention
    cleaner: Cleaner


SLOW_SYNC_SECONDS: Final = 0.05
"""Duration of a sync in seconds at and above which the cleaner pauses."""


def build_upkeep(engine: Engine, entry: Entry, parts: ReplicaParts) -> UpkeepParts:
    """Build the components that write checkpoints, scrub and apply retention."""
    limits, clock, log = engine.settings.limits, engine.clock, engine.log
    return UpkeepParts(
        upkeep=Upkeep(
            entry.directory,
            parts.replicas.both,
            engine.disk,
            clock,
            limits.checkpoint_interval_seconds,
            bytes_max=limits.checkpoint_bytes_max,
            appended_bytes=lambda: parts.disk.rounds.appended_bytes,
            failed=parts.disk.health.fail,
            log=log,
        ),
        scrub=Scrub(
            parts.replicas.both,
            engine.disk,
            clock,
            pass_seconds=limits.scrub_interval_seconds,
            bytes_per_second_max=limits.scrub_bytes_per_second_max,
            count_bytes=engine.telemetry.metric("fairlead_scrub_bytes_total").inc,
            count_damaged=engine.telemetry.metric("fairlead_scrub_damaged_ranges_total").inc,
            log=log,
        ),
        retention=Retention(
            entry.directory,
            parts.replicas,
            engine.disk,
            clock,
            entry.mirror.metadata,
            interval_seconds=lambda: parts.configs.retention_check_seconds,
            failed=parts.disk.health.fail,
            count_deleted=engine.meters.deleted,
            log=log,
        ),
        cleaner=Cleaner(
            parts.replicas.both,
            engine.disk,
            clock,
            CleanerSettings(
                rounds_max=limits.cleaner_threads,
                buffer_bytes=limits.cleaner_buffer_bytes,
                backoff_seconds=lambda: parts.configs.cleaner_backoff_seconds,
                bytes_per_second_max=lambda: parts.configs.cleaner_bytes_per_second,
                disk_is_slow=lambda: engine.disk.is_busy or parts.disk.rounds.was_slow(SLOW_SYNC_SECONDS),
            ),
            CleanerMeters(engine.telemetry),
            parts.peers.cleaning_requests,
            random_bytes=secrets.token_bytes,
            failed=parts.disk.health.fail,
            log=log,
        ),
    )


def spawn_tasks(
    engine: Engine,
    entry: Entry,
    parts: ReplicaParts,
    calls: CallParts,
    upkeep: UpkeepParts,
    config_follower: ClusterConfigFollower,
    audited: AuditQueue,
) -> None:
    """Start every periodic task. The supervisor stops all tasks."""
    housekeeping = Housekeeping(
        entry.coordination, entry.mirror, lambda: calls.controllership.term, engine.clock
    )
    failure_watch = FailureWatch(
        entry.coordination, entry.mirror, lambda: entry.membership, engine.clock, presence.connect
    )
    group_upkeep = GroupUpkeep(calls.groups, entry.mirror, calls.group_lag, engine.clock, engine.log)
    transactions = IdleTransactions(
        calls.transactions, lambda: parts.configs.transactional_id_expiration_us, engine.log
    )
    names = ProducerNames(calls.producer_registry, parts.replicas, engine.log)
    topics = TopicAccess(
        calls.topic_admin,
        lambda: calls.controllership.term is not None,
        parts.views,
        parts.replicas,
        calls.producing,
        parts.peers.peer_side.peers,
    )
    tasks = {
        "audit topic": AuditTopic(audited, topics, engine.log).run(),
        "partitions": parts.replicas.run(),
        "damage repair": parts.damage_repair.run(),
        "epoch reports": parts.epoch_reports.run(),
        "leader writes": parts.disk.leader_writes.run(),
        "leader clock": parts.leader_clock.run(),
        "upkeep": upkeep.upkeep.run(),
        "retention": upkeep.retention.run(),
        "scrub": upkeep.scrub.run(),
        "cluster configuration": config_follower.run(),
        "controllership": calls.controllership.run(),
        "failure watch": failure_watch.run(),
        "housekeeping": housekeeping.run(),
        "group upkeep": group_upkeep.run(),
        "producer names": names.run(),
        "transaction ends": calls.transactions.ends.run(calls.transactions.clean),
        "transaction looks": parts.disk.looks.run(),
        "idle transactions": transactions.run(),
    }
    if engine.settings.limits.cleans:
        tasks["cleaner"] = upkeep.cleaner.run()
    for name, work in tasks.items():
        engine.supervisor.spawn(work, name)

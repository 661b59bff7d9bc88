"""Opens a broker without its listeners, and closes its components in reverse order."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from fairlead_broker.clock import Clock
from fairlead_broker.coordination.mirror import MirrorUpdate
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.log import LogError
from fairlead_broker.log.segments.storage import PosixStorage, Storage
from fairlead_broker.peers.peers import Peers, PeerTls
from fairlead_broker.peers.proofs import BrokerKey, PeerEvidence
from fairlead_broker.registry.metadata import ConfigChange
from fairlead_broker.runtime.broker import Broker, BrokerState
from fairlead_broker.runtime.configs import ClusterConfigFollower
from fairlead_broker.runtime.engine.sync_rounds import Syncing
from fairlead_broker.runtime.hosting.directory_health import DirectoryHealth
from fairlead_broker.runtime.lifecycle.cluster_entry import Advertised, ClusterEntry, Entry
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.telemetry import Telemetry
from fairlead_broker.wiring.calls import CallParts, build_calls
from fairlead_broker.wiring.engine import Engine, build_engine
from fairlead_broker.wiring.links import LinkParts, build_links
from fairlead_broker.wiring.replicas import ReplicaParts, build_peers, build_replicas
from fairlead_broker.wiring.security import SecurityParts, build_security
from fairlead_broker.wiring.upkeep import UpkeepParts, build_upkeep, spawn_tasks


async def open_broker(
    settings: BrokerSettings,
    telemetry: Telemetry,
    clock: Clock,
    *,
    release: str,
    new_id: Callable[[], str],
    state: BrokerState | None = None,
    advertised: Advertised | None = None,
    storage: Storage | None = None,
    coordination: Coordination | None = None,
    tls: PeerTls | None = None,
) -> Broker:
    """Enter the cluster, open and recover every replica, and start every task; return the broker when it is ready.

    `new_id` returns a random version 4 UUID. If given, `storage` replaces the disk. `coordination` is a client of a
    store that several brokers share. The client is closed with the broker. `tls` is the material for peers with TLS.
    Raises LogError for a failure of the directory and CoordinationError for a failure of coordination; the message
    gives advice. If the start fails, all opened components are closed before the exception is raised.
    """
    state = state or BrokerState()
    engine = build_engine(settings, telemetry, clock, new_id)
    cluster = _cluster_entry(engine, storage or PosixStorage(), coordination)
    peers: Peers | None = None
    syncing: Syncing | None = None
    try:
        await engine.supervisor.start()
        engine.loop_lag.start()
        evidence = PeerEvidence(new_id(), BrokerKey(new_id(), new_id(), new_id()))
        entry = await cluster.enter(advertised or addresses_of(settings), release, evidence)
        peers = build_peers(engine, entry, evidence, tls)
        syncing = Syncing(settings.limits.sync_threads, entry.directory.volume)
        broker = await _opened(engine, cluster, entry, peers, syncing, state, release)
    except BaseException:
        engine.loop_lag.stop()
        # Logs that are still queued for recovery are recovered at the next start.
        engine.opening.drop_queued()
        await _release(engine, cluster, peers, syncing, clean=False)
        raise
    try:
        await broker.replicas.settled()
    except BaseException:
        await broker.close(False)
        raise
    state.run(
        lambda: _is_healthy(engine, broker.health) and broker.replicas.in_line and broker.security.is_readable
    )
    if not await engine.disk.run(entry.directory.health.reserve.take):
        engine.log.warning("disk is full; appends are refused until space is freed", path=str(settings.data))
    engine.log.info(
        "broker is ready",
        cluster=settings.cluster,
        cluster_id=entry.cluster.cluster_id,
        broker=entry.incarnation.broker,
        broker_epoch=entry.incarnation.epoch,
        partitions=len(broker.replicas),
    )
    return broker


def _cluster_entry(engine: Engine, storage: Storage, coordination: Coordination | None) -> ClusterEntry:
    seconds = engine.telemetry.metric("fairlead_coordination_seconds")
    return ClusterEntry(
        engine.settings,
        engine.clock,
        storage,
        engine.opening,
        engine.supervisor,
        engine.new_id,
        coordination,
        log=engine.log,
        observe=lambda call, took: seconds.labels(call).observe(took),
    )


def addresses_of(settings: BrokerSettings) -> Advertised:
    """Return the addresses to register, as given in the settings."""
    return Advertised(
        data=str(settings.advertised("http") or ""),
        peer=str(settings.peer_advertise or settings.peer_listen),
        ops=str(settings.ops_listen),
        data_tls=None if (secure := settings.advertised("https")) is None else str(secure),
        peer_scheme=settings.listeners.peer.scheme,
        external=settings.external_url,
        kafka=None
        if settings.kafka_listen is None
        else str(settings.kafka_advertise or settings.kafka_listen),
    )


async def _opened(
    engine: Engine,
    cluster: ClusterEntry,
    entry: Entry,
    peers: Peers,
    syncing: Syncing,
    state: BrokerState,
    release: str,
) -> Broker:
    """Build the components of a broker that has entered its cluster, open the replicas, and start the tasks."""
    parts = build_replicas(engine, entry, peers, syncing)
    calls = build_calls(engine, entry, parts)
    security = build_security(engine, entry, parts)
    upkeep = build_upkeep(engine, entry, parts)
    links = build_links(engine, entry, parts, calls, security)
    config_follower = ClusterConfigFollower(calls.topic_admin, engine.log)
    _watch(engine, parts, calls, release)
    entry.mirror.subscribe(partial(_changed, parts, upkeep, config_follower))
    # The sync rounds must run before logs are opened, because a follower replica starts fetching as soon as its log is
    # open.
    rounds = engine.supervisor.spawn(parts.disk.rounds.run(), "sync rounds")
    await parts.replicas.open_all()
    await _set_strays_aside(engine, entry)
    # Thanks to this checkpoint, a later start need not read and sync the recovered records again.
    await upkeep.upkeep.checkpoint()
    await entry.open_directory()
    # Controllership must not begin earlier, because a controller that is still recovering could not act for the
    # cluster.
    await calls.controllership.begin()
    spawn_tasks(engine, entry, parts, calls, upkeep, config_follower, security.audit_queue)
    links.spawn(engine)
    close = partial(_close, engine, cluster, peers, parts, calls, upkeep, links, rounds)
    build = partial(Broker, state=state, release=release, close=close)
    return _assembled(engine, entry, parts, calls, links, security, upkeep, build)


def _assembled(
    engine: Engine,
    entry: Entry,
    parts: ReplicaParts,
    calls: CallParts,
    links: LinkParts,
    security: SecurityParts,
    upkeep: UpkeepParts,
    build: Callable[..., Broker],
) -> Broker:
    return build(
        settings=engine.settings,
        telemetry=engine.telemetry,
        clock=engine.clock,
        log=engine.log,
        supervisor=engine.supervisor,
        disk=engine.disk,
        validation=engine.validation,
        produce_budget=engine.produce_budget,
        answers=engine.answers,
        entry=entry,
        configs=parts.configs,
        views=parts.views,
        health=parts.disk.health,
        rounds=parts.disk.rounds,
        replicas=parts.replicas,
        departure=parts.departure,
        damage_repair=parts.damage_repair,
        replica_serving=parts.peers.replica_serving,
        cluster_logs=parts.peers.cluster_logs,
        digests=parts.peers.digests,
        cleanings=parts.peers.cleanings,
        voters=parts.peers.voters,
        positions=parts.peers.positions,
        reports=parts.peers.reports,
        peer_side=parts.peers.peer_side,
        controllership=calls.controllership,
        operations=calls.operations,
        topic_admin=calls.topic_admin,
        config_admin=calls.config_admin,
        links=links.links,
        security=security.view,
        audit=security.audit,
        reads=security.reads,
        quotas=security.quotas,
        quota_exchange=security.quota_exchange,
        security_changes=security.changes,
        producing=calls.producing,
        fetching=calls.fetching,
        producer_registry=calls.producer_registry,
        transactions=calls.transactions,
        coordinated_groups=calls.groups,
        group_lag=calls.group_lag,
        records_deletion=calls.records_deletion,
        damage_acceptance=calls.damage_acceptance,
        upkeep=upkeep.upkeep,
        scrub=upkeep.scrub,
        retention=upkeep.retention,
    )


def _watch(engine: Engine, parts: ReplicaParts, calls: CallParts, release: str) -> None:
    """Export gauges of the components, computed at each scrape."""
    engine.meters.watch_broker(
        engine.settings.data,
        lambda: calls.fetching.waiting,
        lambda: _is_healthy(engine, parts.disk.health),
        release,
        platform.python_version(),
    )
    held = engine.telemetry.metric("fairlead_held_bytes")
    held.labels("appends").set_function(lambda: engine.produce_budget.taken)
    held.labels("answers").set_function(lambda: engine.answers.taken)


def _is_healthy(engine: Engine, health: DirectoryHealth) -> bool:
    """Return whether writes are possible: neither the disk nor a task has failed."""
    return health.failure is None and not engine.supervisor.failure.done()


def _changed(
    parts: ReplicaParts, upkeep: UpkeepParts, config_follower: ClusterConfigFollower, update: MirrorUpdate
) -> None:
    for change in update.changes:
        parts.views.changed(change)
        parts.replicas.changed(change)
        if isinstance(change, ConfigChange):
            upkeep.retention.config_changed()
            config_follower.config_changed()


async def _set_strays_aside(engine: Engine, entry: Entry) -> None:
    known = {topic.value.topic_id for topic in entry.mirror.metadata.topics.values()}
    for path in await engine.opening.run(entry.directory.mark_strays, known):
        engine.log.warning("folder of an unknown topic renamed", path=str(path))


async def _close(
    engine: Engine,
    cluster: ClusterEntry,
    peers: Peers,
    parts: ReplicaParts,
    calls: CallParts,
    upkeep: UpkeepParts,
    links: LinkParts,
    rounds: asyncio.Task[None],
    clean: bool,
) -> None:
    """Stop the replicas, sync, write the checkpoint, and leave the cluster.

    The clean marker is written only if every step succeeded.
    """
    engine.loop_lag.stop()
    # The reserved space is released because the last writes of the stop need space, even on a full disk.
    if cluster.directory is not None:
        with suppress(LogError):
            await engine.disk.run(cluster.directory.health.reserve.release)
    calls.groups.close()
    await links.stop()
    await parts.replicas.close_all()
    rounds.cancel()
    await asyncio.wait([rounds])
    synced = await parts.disk.rounds.sync_all() and _is_healthy(engine, parts.disk.health)
    await upkeep.upkeep.checkpoint()
    await _release(engine, cluster, peers, parts.disk.syncing, clean=clean and synced)


async def _release(
    engine: Engine, cluster: ClusterEntry, peers: Peers | None, syncing: Syncing | None, *, clean: bool
) -> None:
    """Stop the tasks, leave the cluster, and stop the threads."""
    await engine.supervisor.stop()
    if peers is not None:
        await peers.close()
    # The directory must not be closed while logs are being opened. Queued logs need not be opened.
    engine.opening.drop_queued()
    await engine.opening.idle()
    try:
        await cluster.leave(clean=clean)
    finally:
        if clean and cluster.directory is not None:
            # The reserve is written again, because the disk may be full at the next start.
            with suppress(LogError):
                await engine.opening.run(cluster.directory.health.reserve.take)
        # The threads must stop even after a failed write, because the process waits for the threads.
        for pool in (engine.disk, engine.opening, engine.validation, syncing):
            if pool is not None:
                pool.close()

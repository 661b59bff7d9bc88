"""Rules of partitions that can be dropped, in the order of the protocol's sections.

Rules of the shells (the code that runs the pure packages) are dropped in the simulator's twins of the shells, and all
other rules in the production code.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fairlead_api.identifiers import BrokerEpoch, BrokerId, TimestampUs
from fairlead_broker.controller import election, reassignment
from fairlead_broker.controller.failure_detector import REFUSALS_MIN, FailureDetector
from fairlead_broker.producers import partition_producers
from fairlead_broker.producers.partition_producers import PartitionProducers
from fairlead_broker.producers.state import RETENTION_US, ProducerState
from fairlead_broker.registry import isr as isr_rules
from fairlead_broker.registry.records import DurabilityState, InSync
from fairlead_broker.replication.follower import PartitionFollower
from fairlead_broker.replication.follower_progress import KnownFollower
from fairlead_broker.replication.leader import PartitionLeader
from fairlead_broker.replication.leader_messages import WriteAnswered, WriteOutcome
from partitions import guards, leading, wishes
from partitions.broker import Broker
from partitions.clients import Reader
from partitions.following import Following
from partitions.leading import Leading
from partitions.messages import Outcome
from simulator.mirror import Mirror
from simulator.switches import Switch


def _yes(*_: Any, **__: Any) -> bool:
    return True


def _no(*_: Any, **__: Any) -> bool:
    return False


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _unguarded(*_: Any) -> tuple[()]:
    return ()


def _names_broker(self: Broker, record: Any) -> bool:
    return record.leader is not None and record.leader.broker == self.number


def _machine_names_broker(self: PartitionLeader, record: Any) -> bool:
    return record.leader is not None and record.leader.broker == self._broker


def _stored_while_at_rest(self: PartitionLeader) -> frozenset[int]:
    pending = self._in_flight is not None or self._in_doubt
    return frozenset() if pending else self._stored


_refusal_of = PartitionLeader.refusal_of


def _refusal_of_any_incarnation(self: PartitionLeader, report: Any) -> Any:
    found = _refusal_of(self, report)
    return None if found is not None and found.value == "stale_broker_epoch" else found


def _is_registered_at_all(self: PartitionLeader, broker: BrokerId, follower: Any) -> bool:
    registered = self._registered.get(broker)
    if registered is None:
        return False
    follower.broker_epoch = registered.epoch  # whichever incarnation reported
    return True


def _is_eligible_in_any_generation(self: PartitionLeader, broker: BrokerId, follower: Any) -> bool:
    replica = self._replicas.get(broker)
    return (
        replica is not None
        and self._is_registered(broker, follower)
        and self._directory_of(replica) is not None
    )


def _progress_of_any_incarnation(self: PartitionLeader, event: Any, follower: Any) -> bool:
    return event.leader_epoch == self._record.leader_epoch and event.generation == follower.generation


def _skip_syncing(record: Any) -> Any:
    synced = record.durability is not DurabilityState.REPLICATED
    other = DurabilityState.REPLICATED if synced else DurabilityState.SYNCED
    return msgspec.structs.replace(record, durability=other)


_with_isr = isr_rules.with_isr
_OTHER: Final = (InSync(broker=BrokerId(0), broker_epoch=BrokerEpoch(0)),)
"""ISR entry of another broker, so that the removed replica is not the last, which `taken_out` would keep."""


def _with_isr_without_elr(record: Any, **changes: Any) -> Any:
    successor = _with_isr(record, **changes)
    return msgspec.structs.replace(successor, elr=()) if successor.isr else successor


def _with_isr_by_epoch(
    record: Any, *, isr: Any, min_isr: int, leaving: Any = (), quarantined: Any = ()
) -> Any:
    out = set(leaving).union(quarantined)
    elr = (each for each in (*record.isr, *record.elr) if each not in isr and each.broker not in out)
    return msgspec.structs.replace(
        record, isr=isr, min_isr=min_isr, elr=tuple(elr) if len(isr) < min_isr else ()
    )


def _without_this_epoch(self: Broker, record: Any) -> Any:
    own = [each for each in (*record.isr, *record.elr) if each.broker == self.number]
    newest = max(own, key=lambda each: each.broker_epoch, default=None)
    kept = tuple(each for each in record.elr if each != newest and each.broker == self.number)
    out = isr_rules.taken_out(record, self.number, self.disk.directory)
    if out is not None:
        return msgspec.structs.replace(out, elr=(*out.elr, *kept))
    if not kept:
        return None
    bare = msgspec.structs.replace(record, elr=_OTHER)
    bare = isr_rules.taken_out(bare, self.number, self.disk.directory)
    return msgspec.structs.replace(bare, elr=kept)


def _any_directory(registration: Any, directory_id: str) -> Any:
    return next(iter(registration.directories), None)


_kept_everything = election.kept_everything


def _kept_since_intact(entry: Any, record: Any, registered: Any, directory: Any, alone: bool) -> bool:
    since = registered.value.intact_since
    since = registered.create_revision if since is None else since
    return alone or record.durability is DurabilityState.SYNCED or since <= entry.broker_epoch


def _kept_since_entry(entry: Any, record: Any, registered: Any, directory: Any, alone: bool) -> bool:
    return bool(directory.last_broker_epoch >= entry.broker_epoch)


def _kept_alone_in_record(entry: Any, record: Any, registered: Any, directory: Any, alone: bool) -> bool:
    return _kept_everything(entry, record, registered, directory, len(record.isr) + len(record.elr) == 1)


def _cut_to_high_watermark(self: Following) -> None:
    self.log.truncate(self.log.high_watermark)


def _unknown_by_record(self: Leading, order: Any) -> None:
    item = self.broker.world.records()[self.partition]
    unchanged = item.mod_revision == order.revision
    self.step(WriteAnswered(order.revision, WriteOutcome.REFUSED if unchanged else WriteOutcome.UNKNOWN))


def _resume_with_hole(self: Mirror) -> None:
    self.revision = self._broker.world.store.revision
    self.watch()


def _drop_at_once(self: Broker, partition: int) -> None:
    if partition in self.damaged:
        self.drop_damaged(partition)


def _order(self: Any, batch: Any) -> Any:
    return self._order(batch)


def _repeat_or_order(self: Any, batch: Any) -> Any:
    return self._find_repeat(batch) or self._order(batch)


def _advance_without_limit(self: ProducerState, append_time_us: int) -> None:
    self._last_append_time_us = TimestampUs(append_time_us)
    self._partition_time_us = append_time_us
    self._oldest_live_us = append_time_us - RETENTION_US


def _answer_repeat_at_once(self: Leading, produce: Any, offset: int) -> None:
    produce.answer(Outcome.OK, offset)


def _ended_unheard(self: FailureDetector, broker: BrokerId, now: float) -> bool:
    watched = self._watched[broker]
    return watched.refusals >= REFUSALS_MIN and now >= watched.spared_until


def _ended_by_one_refusal(self: FailureDetector, broker: BrokerId, now: float) -> bool:
    watched = self._watched[broker]
    return watched.was_connected and now >= watched.spared_until


def _ended_unspared(self: FailureDetector, broker: BrokerId, now: float) -> bool:
    watched = self._watched[broker]
    return watched.was_connected and watched.refusals >= REFUSALS_MIN


SWITCHES: Final = (
    Switch(
        "own-epoch",
        "4.1 a broker leads only in the incarnation that the partition record names",
        (Broker, "leads", _names_broker),
        (PartitionLeader, "_names_this_incarnation", _machine_names_broker),
    ),
    Switch(
        "synced-counting",
        "4.2 with durability=synced only synced offsets count",
        (KnownFollower, "counted", lambda self, durability: self.end_offset),
        (PartitionLeader, "_own_counted", lambda self: self._end_offset),
    ),
    Switch(
        "progress-reconciled",
        "4.2 a follower reports progress only after its log agrees with the leader's",
        (PartitionFollower, "_may_report", _yes),
    ),
    Switch(
        "progress-life",
        "4.2 a progress report counts only if it is from the incarnation of the follower's last fetch",
        (PartitionLeader, "_progress_counts", _progress_of_any_incarnation),
    ),
    Switch(
        "stored-stays",
        "4.4 the high watermark waits for the stored isr while a change of the isr is being written",
        (PartitionLeader, "_stored_members", _stored_while_at_rest),
    ),
    Switch(
        "proposed-counts",
        "4.4 the high watermark also waits for the isr that is being written",
        (PartitionLeader, "_proposed_members", lambda self: frozenset()),
    ),
    Switch(
        "min-isr-gate",
        "4.4 the high watermark moves only while min.insync.replicas are in sync",
        (PartitionLeader, "enough_in_sync", property(_yes)),
    ),
    Switch(
        "join-high-watermark",
        "4.5 a replica joins the isr only after it has reached the high watermark",
        (PartitionLeader, "_reaches_high_watermark", _yes),
        (PartitionLeader, "_had_everything", _yes),
        (PartitionLeader, "_reaches_epoch_start", _yes),
    ),
    Switch(
        "join-epoch-start",
        "4.5 a replica joins the isr only after it has reached the start of the leader's epoch",
        (PartitionLeader, "_reaches_epoch_start", _yes),
    ),
    Switch(
        "join-broker-epoch",
        "4.5 a replica joins the isr only in the registered incarnation of its broker",
        (PartitionLeader, "refusal_of", _refusal_of_any_incarnation),
        (PartitionLeader, "_is_registered", _is_registered_at_all),
        (guards, "added_brokers", _unguarded),
    ),
    Switch(
        "generation",
        "4.5 a follower's report counts only if its generation is the one in the partition record",
        (PartitionLeader, "_is_generation", lambda self, broker, generation: broker in self._replicas),
        (PartitionLeader, "_is_eligible", _is_eligible_in_any_generation),
    ),
    Switch(
        "generation-directory",
        "4.5 when a damaged replica leaves the isr, the partition record names the replica's current directory",
        (Broker, "without_this", lambda self, record: isr_rules.taken_out(record, self.number)),
        shell=True,
    ),
    Switch(
        "syncing",
        "4.6 a change to durability=synced passes through the state syncing",
        (wishes, "with_durability", _skip_syncing),
        shell=True,
    ),
    Switch(
        "elr",
        "4.6 eligible leader replicas stay in the partition record (liveness)",
        (isr_rules, "with_isr", _with_isr_without_elr),
    ),
    Switch(
        "elr-by-broker",
        "4.6 elr entries are matched by broker id, not by incarnation",
        (isr_rules, "with_isr", _with_isr_by_epoch),
        (Broker, "without_this", _without_this_epoch),
    ),
    Switch(
        "directory",
        "4.7 a candidate's broker has registered the directory that the partition record names",
        (election, "registered_directory", _any_directory),
    ),
    Switch(
        "last-broker-epoch",
        "4.7 the broker epoch on a candidate's disk is not older than that of its isr or elr entry",
        # Before it registers its directories, a broker itself checks whether they are an old copy; since either check
        # alone is enough, both are dropped.
        (election, "kept_everything", _kept_since_intact),
        (Broker, "_is_older_than", _no),
    ),
    Switch(
        "intact-since",
        "4.7 unsynced records are trusted only if no restart since the entry may have lost bytes",
        (election, "kept_everything", _kept_since_entry),
    ),
    Switch(
        "alone-replica",
        "4.7 only the single replica of a partition may lead after a loss of unsynced records",
        (election, "kept_everything", _kept_alone_in_record),
    ),
    Switch(
        "truncate-by-epoch",
        "4.8 a follower never truncates by the high watermark",
        (Following, "cut_before_fetching", _cut_to_high_watermark),
    ),
    Switch(
        "diverging",
        "4.8 the last epoch in a fetch is compared with the leader's list of epochs",
        (leading, "divergence", _nothing),
    ),
    Switch(
        "emptied",
        "4.8 a follower without records sends the epoch of its last deleted record",
        (leading, "end_before", _nothing),
    ),
    Switch(
        "reader-epoch",
        "4.9 readers send the leader epoch that they have seen",
        (Reader, "carried_epoch", lambda self: -1),
    ),
    Switch(
        "sync-before-marker",
        "4.10 a stopping broker syncs its logs before it writes the clean marker",
        (Broker, "sync_everything", _nothing),
        shell=True,
    ),
    Switch(
        "marker-removed",
        "2 a starting broker removes the clean marker",
        (Broker, "remove_clean_marker", _nothing),
        shell=True,
    ),
    Switch(
        "leave-before-drop",
        "2 a replica leaves the isr before it drops bytes",
        (Broker, "leave_for_damage", _drop_at_once),
        shell=True,
    ),
    Switch(
        "failed-sync",
        "2 a failed sync is not retried",
        (Broker, "fail_directory", Broker.doubt_logs),
        shell=True,
    ),
    Switch(
        "directories-late",
        "2 a broker registers its directories only when its disk contains the new broker epoch",
        (Broker, "first_directories", Broker._own_directories),
        shell=True,
    ),
    Switch(
        "leader-revision",
        "3.3 a leader's write compares the revision of the partition record",
        (guards, "leader_sees_partition", _unguarded),
        shell=True,
    ),
    Switch(
        "controller-revision",
        "3.3 a controller's write compares the revision of the partition record",
        (guards, "controller_sees_partition", _unguarded),
        shell=True,
    ),
    Switch(
        "unknown-outcome",
        "3.4 a partition record that looks unchanged does not prove that a write failed",
        (Leading, "written_unknown", _unknown_by_record),
        shell=True,
    ),
    Switch(
        "list-after-break",
        "3.5 after an interrupted watch, all keys are listed again",
        (Mirror, "resume", _resume_with_hole),
        shell=True,
    ),
    Switch(
        "alone-unclean",
        "3.7 a leader alone in the isr, whose lease is in doubt, acknowledges nothing if unclean elections are allowed",
        (PartitionLeader, "_may_be_succeeded_uncleanly", _no),
    ),
    Switch(
        "ended-connected",
        "3.10 the lease of an incarnation is ended only if the incarnation had accepted a connection",
        (FailureDetector, "has_ended", _ended_unheard),
    ),
    Switch(
        "ended-twice",
        "3.10 the lease of an incarnation is ended only after two refused connections",
        (FailureDetector, "has_ended", _ended_by_one_refusal),
    ),
    Switch(
        "ended-spared",
        "3.10 a process that registers again after its lease was ended is spared for a time",
        (FailureDetector, "has_ended", _ended_unspared),
    ),
    Switch(
        "finish-min-isr",
        "4.11 a move ends only if enough replicas are in sync",
        (reassignment, "isr_without", lambda record, leaving: record.min_isr),
    ),
    Switch(
        "dedupe",
        "6.1 a repeated batch is recognised",
        (PartitionProducers, "_find_repeat", _nothing),
        (PartitionProducers, "_decide", _order),
    ),
    Switch(
        "repeat-waits",
        "6.1 the answer to a repeated batch waits for the high watermark",
        (Leading, "answer_repeat", _answer_repeat_at_once),
        shell=True,
    ),
    Switch(
        "sequence",
        "6.2 batches of a producer are appended in the order of their sequences",
        (partition_producers, "is_ahead", _no),
        (PartitionProducers, "_decide", _repeat_or_order),
    ),
    Switch(
        "append-times",
        "6.4 append times go back only if the clock is more than an hour behind",
        (ProducerState, "append_time_us", lambda self, now_us: now_us),
    ),
    Switch(
        "partition-time",
        "6.4 a batch moves partition time by at most an hour",
        (ProducerState, "advance", _advance_without_limit),
    ),
)

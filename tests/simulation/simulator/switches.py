"""Bug switches: each drops one rule, as a careless hand might, and the simulator must notice.

A switch is a context manager that replaces one named function or method for as long as it is open. Production code
knows nothing of them. `SWITCHES` names them in the order of the rules; `docs` prints how soon each is found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead_api.identifiers import BrokerEpoch, BrokerId
from fairlead_broker.controller import election, reassignment
from fairlead_broker.producers import partition_producers
from fairlead_broker.producers.partition_producers import PartitionProducers
from fairlead_broker.registry import isr
from fairlead_broker.registry.records import DurabilityState, InSync
from fairlead_broker.replication.follower import PartitionFollower
from fairlead_broker.replication.known_follower import KnownFollower
from fairlead_broker.replication.leader import PartitionLeader
from fairlead_broker.replication.leader_messages import WriteAnswered, WriteOutcome
from simulator import clients, guards, leading, mirror, wishes
from simulator.broker import Broker
from simulator.following import Following
from simulator.leading import Leading
from simulator.messages import Outcome


@dataclass(frozen=True, slots=True)
class Switch:
    """A rule, and how to drop it."""

    name: str
    rule: str
    drop: Callable[[], Any]
    """Opens the switch: a context manager."""
    shell: bool = False
    """Whether the rule is one of the shells, which the simulator has in its own form."""


@contextmanager
def replaced(*what: tuple[object, str, object]) -> Iterator[None]:
    """Replace attributes, each of an owner by its name, for as long as this is open."""
    with ExitStack() as stack:
        for owner, name, value in what:
            if name in owner.__dict__:
                stack.callback(setattr, owner, name, owner.__dict__[name])
            else:
                stack.callback(delattr, owner, name)  # inherited: what it hides comes back
            setattr(owner, name, value)
        yield


def _own_epoch() -> Any:
    def leads(self: Broker, record: Any) -> bool:
        return record.leader is not None and record.leader.broker == self.number

    return replaced(
        (Broker, "leads", leads),
        (PartitionLeader, "_names_this_incarnation", leads_id),
    )


def leads_id(machine: Any, record: Any) -> bool:
    """Say whether the record names this broker, whichever life of it."""
    return record.leader is not None and record.leader.broker == machine._broker


def _synced_counting() -> Any:
    return replaced(
        (KnownFollower, "counted", lambda self, durability: self.end_offset),
        (PartitionLeader, "_own_counted", lambda self: self._end_offset),
    )


def _stored_stays() -> Any:
    def members(self: Any) -> frozenset[int]:
        pending = self._in_flight is not None or self._in_doubt
        return frozenset() if pending else self._stored

    return replaced((PartitionLeader, "_stored_members", members))


def _proposed_counts() -> Any:
    return replaced((PartitionLeader, "_proposed_members", lambda self: frozenset()))


def _min_isr_gate() -> Any:
    return replaced((PartitionLeader, "enough_in_sync", property(lambda self: True)))


def _joins_below_high_watermark() -> Any:
    return replaced(
        (PartitionLeader, "_reaches_high_watermark", lambda self, follower: True),
        (PartitionLeader, "_had_everything", lambda self, counted, within_seconds: True),
        (PartitionLeader, "_reaches_epoch_start", lambda self, follower: True),
    )


def _epoch_start() -> Any:
    return replaced((PartitionLeader, "_reaches_epoch_start", lambda self, follower: True))


def _joining_broker_epoch() -> Any:
    def refusal_of(self: PartitionLeader, report: Any) -> Any:
        found = before(self, report)
        return None if found is not None and found.value == "stale_broker_epoch" else found

    def life(self: Any, broker: int, follower: Any) -> bool:
        registered = self._registered.get(broker)
        if registered is None:
            return False
        follower.broker_epoch = registered.epoch  # whatever life it was that reported
        return True

    before = PartitionLeader.refusal_of
    return replaced(
        (PartitionLeader, "refusal_of", refusal_of),
        (PartitionLeader, "_is_registered", life),
        (guards, "added_brokers", lambda added: ()),
    )


def _generation() -> Any:
    def eligible(self: Any, broker: int, follower: Any) -> bool:
        replica = self._replicas.get(broker)
        return (
            replica is not None
            and self._is_registered(broker, follower)
            and self._directory_of(replica) is not None
        )

    def is_generation(self: Any, broker: int, generation: int) -> bool:
        return broker in self._replicas

    return replaced(
        (PartitionLeader, "_is_generation", is_generation),
        (PartitionLeader, "_is_eligible", eligible),
    )


def _progress_unreconciled() -> Any:
    return replaced((PartitionFollower, "_may_report", lambda self: True))


def _progress_of_any_life() -> Any:
    def counts(self: Any, event: Any, follower: Any) -> bool:
        return event.leader_epoch == self._record.leader_epoch and event.generation == follower.generation

    return replaced((PartitionLeader, "_progress_counts", counts))


def _directory() -> Any:
    def any_directory(registration: Any, directory_id: str) -> Any:
        return next(iter(registration.directories), None)

    return replaced((election, "registered_directory", any_directory))


def _kept(keep: Callable[..., bool]) -> Any:
    return replaced((election, "_kept_everything", keep))


def _last_broker_epoch() -> Any:
    def kept(entry: Any, record: Any, registered: Any, directory: Any, alone: bool) -> bool:
        since = registered.value.intact_since
        since = registered.create_revision if since is None else since
        return alone or record.durability is DurabilityState.SYNCED or since <= entry.broker_epoch

    # The broker looks for an old copy itself before it shows its directories; one of the two is enough.
    return replaced(
        (election, "_kept_everything", kept), (Broker, "_is_older_than", lambda self, record: False)
    )


def _alone_in_record() -> Any:
    original = election._kept_everything

    def kept(entry: Any, record: Any, registered: Any, directory: Any, alone: bool) -> bool:
        return original(entry, record, registered, directory, len(record.isr) + len(record.elr) == 1)

    return _kept(kept)


def _sync_tried_again() -> Any:
    return replaced((Broker, "fail_directory", Broker.doubt_logs))


def _finish_below_min_isr() -> Any:
    return _in_every_room("isr_without", reassignment.isr_without, lambda record, leaving: record.min_isr)


def _intact_since() -> Any:
    def kept(entry: Any, record: Any, registered: Any, directory: Any, alone: bool) -> bool:
        return bool(directory.last_broker_epoch >= entry.broker_epoch)

    return _kept(kept)


def _drop_before_leaving() -> Any:
    def leave(self: Broker, partition: int) -> None:
        offset = self.damaged.get(partition)
        if offset is not None:
            self.drop_damaged(partition)

    return replaced((Broker, "_leave_for_damage", leave))


def _truncate_to_high_watermark() -> Any:
    return replaced(
        (Following, "cut_before_fetching", lambda self: self.log.truncate(self.log.high_watermark))
    )


def _never_truncate() -> Any:
    return replaced((leading, "divergence", lambda epochs, log_end, last_epoch, fetch_offset: None))


def _emptied_goes_on() -> Any:
    return replaced((leading, "end_before", lambda epochs, log_end, deleted_epoch, fetch_offset: None))


def _clean_marker_unsynced() -> Any:
    return replaced((Broker, "sync_everything", lambda self: None))


def _clean_marker_stays() -> Any:
    return replaced((Broker, "remove_clean_marker", lambda self: None))


def _reader_epoch() -> Any:
    return replaced((leading, "reader_is_known", lambda seen, own: True))


def _no_syncing() -> Any:
    def with_durability(record: Any) -> Any:
        other = (
            DurabilityState.SYNCED
            if record.durability is DurabilityState.REPLICATED
            else DurabilityState.REPLICATED
        )
        return msgspec.structs.replace(record, durability=other)

    return replaced((wishes, "with_durability", with_durability))


def _lease_alone() -> Any:
    return replaced((PartitionLeader, "_may_be_succeeded_uncleanly", lambda self: False))


def _dedupe() -> Any:
    def none(self: Any, batch: Any) -> None:
        return None

    def decide(self: Any, batch: Any) -> Any:
        return self._order(batch)

    return replaced((PartitionProducers, "_find_repeat", none), (PartitionProducers, "_decide", decide))


def _sequence() -> Any:
    def is_ahead(sequence: int, expected: int) -> bool:
        return False

    def decide(self: Any, batch: Any) -> Any:
        return self._find_repeat(batch) or self._order(batch)

    return replaced((partition_producers, "is_ahead", is_ahead), (PartitionProducers, "_decide", decide))


def _repeat_at_once() -> Any:
    return replaced(
        (Leading, "answer_repeat", lambda self, produce, offset: produce.answer(Outcome.OK, offset))
    )


def _elr() -> Any:
    original = isr.with_isr

    def without_elr(record: Any, **changes: Any) -> Any:
        successor = original(record, **changes)
        return msgspec.structs.replace(successor, elr=()) if successor.isr else successor

    return _in_every_room("with_isr", original, without_elr)


def _elr_by_epoch() -> Any:
    original = isr.with_isr

    def by_epoch(record: Any, *, isr: Any, min_isr: int, leaving: Any = (), quarantined: Any = ()) -> Any:
        elr = ()
        if len(isr) < min_isr:
            out = set(leaving).union(quarantined)
            elr = tuple(
                each for each in (*record.isr, *record.elr) if each not in isr and each.broker not in out
            )
        return msgspec.structs.replace(record, isr=isr, min_isr=min_isr, elr=elr)

    def without_this(self: Broker, record: Any) -> Any:
        entries = [each for each in (*record.isr, *record.elr) if each.broker == self.number]
        newest = max(entries, key=lambda each: each.broker_epoch, default=None)
        left = tuple(each for each in record.elr if each != newest)
        out = isr.taken_out(record, self.number, self.disk.directory)
        kept = tuple(each for each in left if each.broker == self.number)
        if out is None:
            if not kept:
                return None
            bare = isr.taken_out(msgspec.structs.replace(record, elr=OTHER), self.number, self.disk.directory)
            return msgspec.structs.replace(bare, elr=kept)
        return msgspec.structs.replace(out, elr=(*out.elr, *kept))

    return _both(
        _in_every_room("with_isr", original, by_epoch), replaced((Broker, "without_this", without_this))
    )


OTHER = (InSync(broker=BrokerId(0), broker_epoch=BrokerEpoch(0)),)
"""Stands for whoever is left, where a record is made that must not be empty."""


@contextmanager
def _both(first: Any, second: Any) -> Iterator[None]:
    with first, second:
        yield


def _in_every_room(name: str, original: object, value: object) -> Any:
    """Replace a function wherever it was imported by its name."""
    owners = [
        module
        for key, module in sorted(sys.modules.items())
        if key.startswith(("fairlead_broker.", "simulator.")) and module.__dict__.get(name) is original
    ]
    return replaced(*((owner, name, value) for owner in owners))


def _reread_decides() -> Any:
    def unknown(self: Leading, order: Any) -> None:
        item = self.broker.world.records()[self.partition]
        if item.mod_revision == order.revision:
            self.step(WriteAnswered(order.revision, WriteOutcome.REFUSED))
        else:
            self.step(WriteAnswered(order.revision, WriteOutcome.UNKNOWN))

    return replaced((Leading, "written_unknown", unknown))


def _watch_hole() -> Any:
    def resume(self: mirror.Mirror) -> None:
        self.revision = self._broker.world.store.revision
        self.watch()

    return replaced((mirror.Mirror, "resume", resume))


def _shown_too_early() -> Any:
    return replaced((Broker, "first_directories", lambda self: self._own_directories()))


def _carried_epoch() -> Any:
    return replaced((clients.Reader, "carried_epoch", lambda self: -1))


def _leader_revision() -> Any:
    return replaced((guards, "leader_sees_partition", lambda partition, revision: ()))


def _controller_revision() -> Any:
    return replaced((guards, "controller_sees_partition", lambda partition, revision: ()))


def _take_out_directory() -> Any:
    def without_this(self: Broker, record: Any) -> Any:
        return isr.taken_out(record, self.number)

    return replaced((Broker, "without_this", without_this))


SWITCHES = (
    Switch("own-epoch", "4.1 a broker leads only in the life that the record names", _own_epoch),
    Switch("synced-counting", "4.2 synced offsets count", _synced_counting),
    Switch("progress-reconciled", "4.2 progress only after reconciling", _progress_unreconciled),
    Switch("progress-life", "4.2 progress names its broker epoch", _progress_of_any_life),
    Switch("stored-stays", "4.4 the stored isr stays in", _stored_stays),
    Switch("proposed-counts", "4.4 the proposed isr counts", _proposed_counts),
    Switch("min-isr-gate", "4.4 the high watermark moves only with min_isr", _min_isr_gate),
    Switch(
        "join-high-watermark", "4.5 a joining replica reaches the high watermark", _joins_below_high_watermark
    ),
    Switch("join-epoch-start", "4.5 a joining replica reaches the epoch's start", _epoch_start),
    Switch("join-broker-epoch", "4.5 a joining replica is in its registered life", _joining_broker_epoch),
    Switch("generation", "4.5 a report counts in its generation only", _generation),
    Switch(
        "generation-directory", "4.5 leaving for damage writes the directory", _take_out_directory, shell=True
    ),
    Switch("syncing", "4.6 syncing before synced", _no_syncing, shell=True),
    Switch("elr", "4.6 eligible replicas are remembered (liveness)", _elr),
    Switch("elr-by-broker", "4.6 elr entries go by broker, not by life", _elr_by_epoch),
    Switch("directory", "4.7 a candidate has the directory of the record", _directory),
    Switch("last-broker-epoch", "4.7 a candidate's disk knows the life of the entry", _last_broker_epoch),
    Switch("intact-since", "4.7 written records survive only intact starts", _intact_since),
    Switch(
        "alone-replica",
        "4.7 only a partition's one replica leads without what it had not synced",
        _alone_in_record,
    ),
    Switch("truncate-by-epoch", "4.8 never truncate by the high watermark", _truncate_to_high_watermark),
    Switch("diverging", "4.8 a fetch is checked against the leader's epochs", _never_truncate),
    Switch("emptied", "4.8 a log without records says which epoch it has deleted", _emptied_goes_on),
    Switch("reader-epoch", "4.9 clients carry the leader epoch", _carried_epoch),
    Switch("sync-before-marker", "4.10 fsync before the clean marker", _clean_marker_unsynced, shell=True),
    Switch("marker-removed", "2 the clean marker goes at the start", _clean_marker_stays, shell=True),
    Switch("leave-before-drop", "2 out of the isr before dropping bytes", _drop_before_leaving, shell=True),
    Switch("failed-sync", "2 a failed sync is not tried again", _sync_tried_again, shell=True),
    Switch(
        "directories-late",
        "2 directories are shown when the disk knows the life",
        _shown_too_early,
        shell=True,
    ),
    Switch("leader-revision", "3.3 a leader compares the record's revision", _leader_revision, shell=True),
    Switch(
        "controller-revision",
        "3.3 a controller compares the record's revision",
        _controller_revision,
        shell=True,
    ),
    Switch("unknown-outcome", "3.4 an unchanged record proves nothing", _reread_decides, shell=True),
    Switch("list-after-break", "3.5 list again after a broken watch", _watch_hole, shell=True),
    Switch("alone-unclean", "3.7 unclean and alone: no acknowledgement", _lease_alone),
    Switch("finish-min-isr", "4.11 a move ends with enough in sync", _finish_below_min_isr),
    Switch("dedupe", "6.1 a repeat is recognised", _dedupe),
    Switch("repeat-waits", "6.1 a repeat waits for the high watermark", _repeat_at_once, shell=True),
    Switch("sequence", "6.2 batches of a producer stand in order", _sequence),
)
BY_NAME = {switch.name: switch for switch in SWITCHES}

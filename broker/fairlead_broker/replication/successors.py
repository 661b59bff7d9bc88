"""Which successor of the partition record its leader wants: joins, shrinks, `synced`, and its own resignation.

The half of the leader's machine that decides about the record; `leader` is the half that counts. One write is in
flight at a time; who is proposed belongs to the maximal isr from the order to write on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from fairlead_api.identifiers import BrokerEpoch, BrokerId, Offset, Revision
from fairlead_broker.registry.isr import generation_in, with_isr
from fairlead_broker.registry.records import DurabilityState, InSync, PartitionRecord, Replica
from fairlead_broker.replication.caught_up import EndOffsets
from fairlead_broker.replication.effects import LeaderEffect, WriteRecord
from fairlead_broker.replication.known_follower import KnownFollower
from fairlead_broker.replication.progress import ReplicaProgress
from fairlead_broker.replication.registered_broker import RegisteredBroker

WAITED_FOR_SHARE: Final = 0.1
"""The high watermark waits for a replica outside the isr that had everything within this share of the lag time. A
larger one would stop every acknowledgement while a far replica catches up; a smaller one is less than a fetch with
its fsync takes, and a replica could never join under load."""


class Successors:
    """State of the leader's machine, and what it wants to have written."""

    __slots__ = (
        "_broker",
        "_broker_epoch",
        "_complete",
        "_directory_failed",
        "_end_offset",
        "_epoch_start",
        "_followers",
        "_generations",
        "_held_back",
        "_high_watermark",
        "_in_doubt",
        "_in_flight",
        "_in_sync_count",
        "_isr_epochs",
        "_lag_seconds",
        "_lease_confirmed",
        "_log_start",
        "_maximal",
        "_member_since",
        "_now",
        "_record",
        "_registered",
        "_replicas",
        "_resigned",
        "_revision",
        "_ring",
        "_stored",
        "_synced_offset",
    )

    def __init__(
        self,
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        record: PartitionRecord,
        revision: Revision,
        registered: Mapping[BrokerId, RegisteredBroker],
        progress: ReplicaProgress,
        high_watermark: Offset,
        now: float,
        lag_seconds: float,
    ) -> None:
        self._broker = broker
        self._broker_epoch = broker_epoch
        self._record = record
        self._revision = revision
        self._registered = registered
        self._end_offset = progress.end_offset
        self._synced_offset = progress.synced_offset
        self._epoch_start = progress.end_offset
        self._high_watermark = high_watermark
        self._log_start = Offset(0)
        self._now = now
        self._lag_seconds = lag_seconds
        self._ring = EndOffsets(progress.end_offset, now, lag_seconds)
        self._followers: dict[BrokerId, KnownFollower] = {}
        self._in_flight: WriteRecord | None = None
        self._in_doubt: frozenset[BrokerId] = frozenset()
        """Who would be in the isr by writes whose outcome is unknown."""
        self._held_back = False
        """Whether the last write came to nothing: no other one before time has passed or something was learned."""
        self._lease_confirmed = True
        self._directory_failed = False
        self._resigned = False
        self._complete = False
        """Whether nobody outside the isr could join, and `synced` is not to be written: most reports then ask for
        no write. Who falls behind is found as time passes."""
        self._member_since: dict[BrokerId, float] = {}
        self._read_record()
        self._recount()

    def _read_record(self) -> None:
        """Look up once what every report asks of the record."""
        record = self._record
        self._replicas: dict[BrokerId, Replica] = {replica.broker: replica for replica in record.replicas}
        self._isr_epochs = {entry.broker: entry.broker_epoch for entry in record.isr}
        self._member_since = {
            broker: self._member_since.get(broker, self._now) for broker in self._isr_epochs
        }
        self._generations = {replica.broker: self._generation_of(replica) for replica in record.replicas}

    def _generation_of(self, replica: Replica) -> int:
        """Rule 4.5: a registered directory that the record does not name yet starts at generation 0."""
        directory = self._directory_of(replica)
        return replica.generation if directory is None else generation_in(replica, directory)

    def _directory_of(self, replica: Replica) -> str | None:
        """The registered directory that holds a replica: the one that the record names if it is there."""
        registered = self._registered.get(replica.broker)
        if registered is None or not registered.directories:
            return None
        if replica.directory in registered.directories:
            return replica.directory
        return registered.directories[0]

    def _recount(self) -> None:
        """Tell anew who belongs to which isr."""
        self._stored = frozenset(self._isr_epochs)
        self._maximal = self._stored_members() | self._proposed_members()
        self._in_sync_count = len(self._stored.difference(self._counts_not_yet()))
        self._complete = self._record.durability is not DurabilityState.SYNCING and not any(
            self._isr_epochs.get(broker) != follower.broker_epoch and self._is_eligible(broker, follower)
            for broker, follower in self._followers.items()
        )

    @property
    def maximal_isr(self) -> frozenset[BrokerId]:
        """Every broker that an undecided write may have put into the isr, and the stored ones (rule 4.4)."""
        return self._maximal

    def _stored_members(self) -> frozenset[BrokerId]:
        """The isr as it is stored: who is proposed to leave stays in until that is stored."""
        return self._stored

    def _proposed_members(self) -> frozenset[BrokerId]:
        """The isr of every write that may be stored by now."""
        if self._in_flight is None:
            return self._in_doubt
        return self._in_doubt.union(entry.broker for entry in self._in_flight.record.isr)

    def _counts_not_yet(self) -> tuple[BrokerId, ...]:
        """Rule 4.4: replicas of an unfinished reassignment do not count towards min_isr."""
        return self._record.adding

    # -- time

    def _own_counted(self) -> Offset:
        if self._record.durability is DurabilityState.REPLICATED:
            return self._end_offset
        return self._synced_offset

    def _is_in_sync(self, broker: BrokerId) -> bool:
        """Rule 4.2: it had everything within the lag time.

        A member has as long from the epoch's start, to find its leader, and from its joining: it comes in with all that
        is committed, which can be long before it has the rest, and would go in and out until then.
        """
        since = self._member_since.get(broker)
        if since is not None and self._now - since <= self._lag_seconds:
            return True
        counted = self._own_counted() if broker == self._broker else None
        if counted is None:
            follower = self._followers.get(broker)
            if follower is None:
                return False
            counted = follower.counted(self._record.durability)
        return self._had_everything(counted, self._lag_seconds)

    def _had_everything(self, counted: Offset, within_seconds: float) -> bool:
        at = self._ring.caught_up_at(counted, self._now)
        return at is not None and self._now - at <= within_seconds

    # -- whom the high watermark waits for outside the isr

    def _waited_for(self) -> Iterator[KnownFollower]:
        """Rule 4.4: caught-up replicas that may join.

        While the isr is small the high watermark is the leader's own end, which no follower reaches under load. An
        attempt ends by itself: whoever keeps having everything within a share of the lag time has, after as long,
        all that the leader had at the attempt's start, and so the high watermark that waited.
        """
        for broker, follower in self._followers.items():
            if broker not in self._maximal and self._is_worth_waiting(broker, follower):
                yield follower

    def _is_worth_waiting(self, broker: BrokerId, follower: KnownFollower) -> bool:
        return (
            self._may_write()
            and self._is_eligible(broker, follower)
            and self._had_everything(
                follower.counted(self._record.durability), self._lag_seconds * WAITED_FOR_SHARE
            )
        )

    # -- what is to be written

    def _plan(self, effects: list[LeaderEffect]) -> None:
        """Order the next write, if one is wanted and none is in flight."""
        if self._in_flight is not None or self._held_back or not self._may_write():
            return
        write = self._resignation() or self._isr_change() or self._end_of_syncing()
        if write is not None:
            self._in_flight = write
            self._recount()
            effects.append(write)

    def _may_write(self) -> bool:
        """Without a sure lease the store is away or this life over: a write would only be in doubt."""
        return self._lease_confirmed and not self._resigned

    def _resignation(self) -> WriteRecord | None:
        """Rule 4.3: leave where the directory failed or the own disk lags, if somebody is there to go on."""
        if not (self._directory_failed or self._own_disk_lags()) or not self._somebody_goes_on():
            return None
        isr = tuple(entry for entry in self._record.isr if entry.broker != self._broker)
        # After a failed fsync the pages may be gone though they look written: only what `synced` promised is sure.
        distrusted = self._directory_failed and self._record.durability is not DurabilityState.SYNCED
        record = self._with_isr(isr, (self._broker,) if distrusted else ())
        return WriteRecord(self._revision, msgspec.structs.replace(record, leader=None))

    def _own_disk_lags(self) -> bool:
        return not self._is_in_sync(self._broker)

    def _somebody_goes_on(self) -> bool:
        """Another live member of the isr with its disk; for a lagging disk one that does not lag as well."""
        return any(
            entry.broker != self._broker
            and self._is_live(entry)
            and not self._lost_disk(entry)
            and (self._directory_failed or self._is_in_sync(entry.broker))
            for entry in self._record.isr
        )

    def _is_live(self, entry: InSync) -> bool:
        registered = self._registered.get(entry.broker)
        return registered is not None and registered.joins and registered.epoch == entry.broker_epoch

    def _isr_change(self) -> WriteRecord | None:
        """Take out who lags and take in who has caught up, in one write."""
        if self._directory_failed:
            return None
        joining = {
            broker: follower
            for broker, follower in self._followers.items()
            if self._may_join(broker, follower)
        }
        staying = tuple(
            entry for entry in self._record.isr if entry.broker not in joining and self._stays(entry)
        )
        if not joining and len(staying) == len(self._record.isr):
            return None
        joined = tuple(
            InSync(broker=broker, broker_epoch=follower.broker_epoch) for broker, follower in joining.items()
        )
        record = msgspec.structs.replace(
            self._with_isr((*staying, *joined)),
            replicas=tuple(
                self._with_directory(replica) if replica.broker in joining else replica
                for replica in self._record.replicas
            ),
        )
        added = tuple((broker, self._registered[broker].revision) for broker in joining)
        return WriteRecord(self._revision, record, added)

    def _with_isr(self, isr: tuple[InSync, ...], quarantined: tuple[BrokerId, ...] = ()) -> PartitionRecord:
        record = self._record
        leaving = {entry.broker for entry in (*record.isr, *record.elr) if entry.broker not in self._replicas}
        return with_isr(record, isr=isr, min_isr=record.min_isr, leaving=leaving, quarantined=quarantined)

    def _stays(self, entry: InSync) -> bool:
        """The leader stays; others while they keep up, and can."""
        return entry.broker == self._broker or (self._is_in_sync(entry.broker) and not self._lost_disk(entry))

    def _lost_disk(self, entry: InSync) -> bool:
        """Whether the disk of a member has failed: it copies nothing any more in this life, and says so at once."""
        registered = self._registered.get(entry.broker)
        return (
            registered is not None and registered.epoch == entry.broker_epoch and not registered.directories
        )

    def _with_directory(self, replica: Replica) -> Replica:
        """Rule 4.5: the put that adds a broker writes its registered directory; nobody else does."""
        directory = self._directory_of(replica)
        assert directory is not None, "who joins has a registered directory"
        return msgspec.structs.replace(
            replica, directory=directory, generation=generation_in(replica, directory)
        )

    def _may_join(self, broker: BrokerId, follower: KnownFollower) -> bool:
        """Rule 4.5, all of it. That it has fetched in this epoch is why it is known at all."""
        return (
            self._isr_epochs.get(broker) != follower.broker_epoch
            and self._is_heard_of(follower)
            and self._reaches_high_watermark(follower)
            and self._reaches_epoch_start(follower)
            and self._is_eligible(broker, follower)
        )

    def _is_heard_of(self, follower: KnownFollower) -> bool:
        """Who was dropped has to report again, or a dead one would come back by what it said before.

        Where the log does not grow there is nothing to report: who has everything has it still.
        """
        return not follower.left or follower.counted(self._record.durability) >= self._end_offset

    def _reaches_high_watermark(self, follower: KnownFollower) -> bool:
        return follower.counted(self._record.durability) >= self._high_watermark

    def _reaches_epoch_start(self, follower: KnownFollower) -> bool:
        """Below the start of the epoch the leader does not know yet what is committed."""
        return follower.counted(self._record.durability) >= self._epoch_start

    def _is_eligible(self, broker: BrokerId, follower: KnownFollower) -> bool:
        """Whether the record and the registration let this life of the replica into the isr."""
        replica = self._replicas.get(broker)
        return (
            replica is not None
            and self._is_registered_life(broker, follower)
            and self._generations.get(broker) == follower.generation
            and self._directory_of(replica) is not None
        )

    def _is_registered_life(self, broker: BrokerId, follower: KnownFollower) -> bool:
        registered = self._registered.get(broker)
        return registered is not None and registered.joins and registered.epoch == follower.broker_epoch

    def _end_of_syncing(self) -> WriteRecord | None:
        """Rule 4.6: the leader ends `syncing` once everything promised so far is on every member's disk."""
        if (
            self._record.durability is not DurabilityState.SYNCING
            or self._record.elr
            or self._directory_failed
        ):
            return None
        promised = max(self._high_watermark, self._epoch_start)
        for broker in self._maximal:
            if broker == self._broker:
                synced = self._synced_offset
            elif (follower := self._followers.get(broker)) is not None:
                synced = follower.synced_offset
            else:
                return None
            if synced < promised:
                return None
        return WriteRecord(
            self._revision, msgspec.structs.replace(self._record, durability=DurabilityState.SYNCED)
        )

"""The shell of a follower, which fetches from the leader, appends, and executes the effects of `PartitionFollower`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead_api.identifiers import BrokerId, LeaderEpoch, Offset
from fairlead_broker.replication.follower import PartitionFollower
from fairlead_broker.replication.follower_messages import (
    CopiesAppended,
    Diverged,
    Fetched,
    FetchOutOfRange,
    FollowerEvent,
    FollowerLogSynced,
    MoveLogStart,
    ReportProgress,
    RestartAt,
    Restarted,
    Truncated,
    TruncateTo,
)
from fairlead_broker.replication.leader_messages import AdvanceHighWatermark
from partitions.disk import Log
from partitions.messages import FetchAnswer, FetchDiverged, FetchedCells, FetchOutside

if TYPE_CHECKING:
    from partitions.broker import Broker

ANSWER_SECONDS = 1.5
"""Timeout of a fetch, including the time for which the leader may delay its answer."""
AGAIN_SECONDS = 0.15


class Following:
    """A partition that one broker follows in one leader epoch."""

    def __init__(
        self,
        broker: Broker,
        partition: int,
        log: Log,
        leader: int,
        leader_epoch: LeaderEpoch,
        generation: int,
    ) -> None:
        """Start following."""
        self.broker = broker
        self.partition = partition
        self.log = log
        self.leader = leader
        self.epoch = leader_epoch
        self.generation = generation
        self.closed = False
        self.broker_epoch = broker.epoch
        self._asked = 0
        self._waits = False
        self.cut_before_fetching()
        self.machine = PartitionFollower(
            BrokerId(broker.number),
            broker.epoch,
            generation,
            leader_epoch,
            log.end,
            Offset(log.synced),
            Offset(log.log_start),
            Offset(log.high_watermark),
            log.last_epoch,
        )
        self._ask()

    def cut_before_fetching(self) -> None:
        """Truncate nothing, because only the leader knows the offset at which the logs diverge."""

    def close(self) -> None:
        """Stop following."""
        self.closed = True

    def step(self, event: FollowerEvent) -> None:
        """Pass an event to `PartitionFollower`, and execute its effects."""
        if self.closed:
            return
        for effect in self.machine.step(event):
            match effect:
                case TruncateTo(offset):
                    self._truncate(offset)
                case RestartAt(offset, deleted):
                    self.log.restart(offset, deleted)
                    self.step(Restarted(offset, self.log.last_epoch))
                case AdvanceHighWatermark(offset):
                    self.log.high_watermark = min(offset, self.log.end)
                case MoveLogStart(offset):
                    self.log.log_start = max(self.log.log_start, min(offset, self.log.end))
                case ReportProgress(offset):
                    self._report(offset)

    def _truncate(self, offset: int) -> None:
        self.broker.world.note("truncates", self.broker.number, offset, self.log.end)
        self.broker.world.judge.counts["truncations"] += 1
        self.log.truncate(offset)
        self.step(Truncated(self.log.end, self.log.last_epoch))

    def _report(self, offset: int) -> None:
        world, broker = self.broker.world, self.broker
        world.network.send(
            broker.number,
            self.leader,
            world.brokers[self.leader].progress,
            self.partition,
            broker.number,
            self.broker_epoch,
            self.generation,
            self.epoch,
            offset,
            late=world.network.lateness("progress", broker.number),
        )

    def synced(self, offset: int) -> None:
        """Handle the sync of this replica's log up to an offset."""
        self.step(FollowerLogSynced(Offset(offset)))

    # -- fetching

    def _ask(self) -> None:
        if self.closed:
            return
        report = self.machine.next_fetch()
        if report is None:
            return
        self._asked += 1
        world = self.broker.world
        world.network.send(
            self.broker.number,
            self.leader,
            world.brokers[self.leader].fetch,
            self.partition,
            report,
            self._answer_from(self._asked),
            late=world.network.lateness("fetch", self.broker.number),
        )
        self.broker.after(ANSWER_SECONDS, self._given_up, self._asked)

    def _answer_from(self, asked: int):
        broker, leader = self.broker, self.leader
        life = broker.life

        def answer(what: FetchAnswer) -> None:
            broker.world.network.send(
                leader, broker.number, broker.alive_in, life, self._answered, asked, what
            )

        return answer

    def _given_up(self, asked: int) -> None:
        if not self.closed and asked == self._asked:
            self._ask()

    def _answered(self, asked: int, answer: FetchAnswer) -> None:
        if self.closed or asked != self._asked:
            return
        self._asked += 1  # a repeated message does not answer the next request
        match answer:
            case FetchedCells() if answer.cells and not self.broker.takes_writes:
                self.broker.after(AGAIN_SECONDS, self._ask)
                return
            case FetchedCells():
                self._append(answer)
            case FetchDiverged(end):
                self.step(Diverged(end.epoch, end.end_offset, self.log.epoch_end(end.epoch)))
            case FetchOutside(log_start, end, deleted):
                self.step(FetchOutOfRange(Offset(log_start), Offset(end), deleted))
                self.broker.after(AGAIN_SECONDS, self._ask)
                return
            case _:
                self.broker.after(AGAIN_SECONDS, self._ask)
                return
        self._ask()

    def _append(self, answer: FetchedCells) -> None:
        self.step(
            Fetched(
                LeaderEpoch(answer.leader_epoch),
                None if answer.high_watermark is None else Offset(answer.high_watermark),
                Offset(answer.log_start),
                len(answer.cells),
            )
        )
        if self.closed or not answer.cells:
            return
        self.log.append(answer.cells)
        self.step(CopiesAppended(self.log.end, self.log.last_epoch))
        self.broker.sync_soon(self.partition)

"""A topic in two clusters that mirror it in turn: copying, hand-overs, failovers, returns, and every kind of loss.

Leaders and controllers are twins of the shells; the decisions, eras, ranges of producer ids and checks of batches are
production code, and the batches are real bytes. A run is determined by its seed: each step writes, copies, loses,
deletes, damages, elects, cuts the network, crashes a controller between two steps of a hand-over, or gives an order of
an operator. Then the faults end, and the clusters must come to rest.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.links.copying import (
    Append,
    Arrived,
    Cut,
    Expired,
    MirrorLog,
    OnExpiry,
    OnTruncation,
    RaiseEpoch,
    Skip,
    SourceAnswer,
    Stop,
    Truncated,
    next_step,
)
from fairlead_broker.links.eras import Kinship, first_of_next_era, kinship
from fairlead_broker.links.selection import LocalTopics, SourceTopic, blocked
from fairlead_broker.links.switching import Known, SwitchStep, next_switch_step
from fairlead_broker.registry.records import MirrorState
from fairlead_broker.replication.divergence import EpochEnd, EpochStart, divergence
from fairlead_broker.runtime.linking.arrivals import check_batches
from linked.cluster import PARTITIONS, Cluster, Era, Partition, stored, unpacked
from linked.judge import IdsApart, Judge, NeverAhead, NoCycle, WritesContinue
from simulator.judge import violation_of
from simulator.world import Verdict

STEPS: Final = 220
SETTLING_STEPS: Final = 4_000
ANSWER_BATCHES: Final = 3
BODY_BYTES_MAX: Final = 1 << 20
DAMAGE_CHANCE: Final = 0.04


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the source on its way to the mirror."""

    content: SourceAnswer
    data: bytes
    log_start: int
    end: int
    """End of the mirror's log when it sent the request."""
    epoch: int


class World:
    """One run."""

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.judge = Judge()
        self.clusters = [Cluster("east"), Cluster("west")]
        self.clusters[1].mirror = MirrorState.MIRRORING
        self.answers: dict[tuple[int, int], Answer] = {}
        self.is_cut = False
        self.values = 0
        self.producer_ids: set[int] = set()
        self.trace: list[str] = []
        self.traced = traced
        self.digest = hashlib.sha256()

    def run(self) -> None:
        """Take random steps, then let the clusters rest. Raises the violated invariant."""
        steps: dict[Callable[[int], None], float] = {
            self.produce: 8, self.replicate: 10, self.fetch: 14, self.receive: 14, self.commit: 3,
            self.copy_offsets: 3, self.switch: 10, self.elect: 1.5, self.lose: 0.5, self.expire: 0.7,
            self.crash_controller: 2, self.hand_over: 0.8, self.fail_over: 0.35, self.give_up: 0.4,
            self.take_back: 3, self.adopt: 3, self.acknowledge: 1, self.change_network: 0.8, self.survey: 0.4,
            self.begin_producer: 1,
        }  # fmt: skip
        for _ in range(STEPS):
            self._take(steps)
        self._settle()

    def _take(self, steps: dict[Callable[[int], None], float]) -> None:
        [step] = self.rng.choices(list(steps), list(steps.values()))
        at = self.rng.randrange(2)
        self._note(f"{step.__name__} {self.clusters[at].name}")
        step(at)
        self.judge.check(self.clusters)

    def _settle(self) -> None:
        """Run without faults until one cluster accepts records and its mirror has all of them."""
        self.is_cut = False
        steps: dict[Callable[[int], None], float] = {
            self.replicate: 3, self.fetch: 3, self.receive: 3, self.switch: 3, self.copy_offsets: 1,
            self.take_back: 1, self.acknowledge: 1,
        }  # fmt: skip
        for _ in range(SETTLING_STEPS):
            if self._is_at_rest():
                break
            self._take(steps)
        if not any(each.accepts for each in self.clusters):
            msg = "no cluster accepts records"
            raise WritesContinue(msg)
        for mirror, source in self._mirrors():
            self.judge.compare(mirror, source)

    def _mirrors(self) -> list[tuple[Cluster, Cluster]]:
        """Return each cluster that mirrors the other one, with the other one."""
        one, other = self.clusters
        pairs = ((one, other), (other, one))
        return [
            (mirror, source)
            for mirror, source in pairs
            if mirror.mirror is MirrorState.MIRRORING and source.mirror is None
        ]

    def _is_at_rest(self) -> bool:
        return any(each.accepts for each in self.clusters) and all(
            own.high_watermark == own.end == other.end == other.high_watermark
            and own.log_start >= other.log_start
            and self._brings_nothing(self._answered(own, other))
            for mirror, source in self._mirrors()
            for own, other in zip(mirror.partitions, source.partitions, strict=True)
        )

    def _brings_nothing(self, answer: Answer | None) -> bool:
        return answer is None or (isinstance(answer.content, Arrived) and not answer.data)

    def _note(self, text: str) -> None:
        self.digest.update(text.encode())
        if self.traced:
            self.trace.append(text)

    def _partition(self, at: int) -> tuple[int, Partition]:
        index = self.rng.randrange(PARTITIONS)
        return index, self.clusters[at].partitions[index]

    # -- writers, replicas and losses

    def produce(self, at: int) -> None:
        """Append a record, which is acknowledged when the follower has it."""
        if self.clusters[at].accepts:
            index, partition = self._partition(at)
            self.values += 1
            entry = stored(partition.end, partition.epoch, b"%d" % self.values)
            self.judge.wrote(index, entry)
            partition.append(entry)
            self.counts["written"] += 1

    def replicate(self, at: int) -> None:
        """Let the follower reach the end of the log."""
        index, partition = self._partition(at)
        before, partition.high_watermark = partition.high_watermark, partition.end
        cluster = self.clusters[at]
        if cluster.mirror is None:
            new = [each for each in partition.log if each.offset >= before]
            self.judge.acknowledges(cluster, index, new)

    def elect(self, at: int) -> None:
        """Let the follower lead: records that only the leader has are cut."""
        _, partition = self._partition(at)
        partition.cut(partition.high_watermark)
        partition.epoch += 1
        self.counts["elections"] += 1

    def lose(self, at: int) -> None:
        """Elect a replica without the last committed record."""
        _, partition = self._partition(at)
        if self.clusters[at].mirror is None and partition.log and not self.clusters[at].handed_over:
            gone = partition.cut(partition.log[-1].offset)
            self.judge.gone.update(each.value for each in gone)
            partition.epoch += 1
            self.counts["lost"] += 1

    def expire(self, at: int) -> None:
        """Delete a third of the committed records of a topic that is not a mirror."""
        _, partition = self._partition(at)
        if self.clusters[at].mirror is None and partition.high_watermark > partition.log_start:
            reach = max(1, (partition.high_watermark - partition.log_start) // 3)
            gone = partition.delete_to(partition.log_start + reach)
            self.judge.gone.update(each.value for each in gone)
            self.counts["expired"] += 1

    def begin_producer(self, at: int) -> None:
        """Allocate the id of a producer, which the log of the other cluster will contain."""
        new = self.clusters[at].new_producer_id()
        if new in self.producer_ids:
            msg = f"{self.clusters[at].name} allocates {new} again"
            raise IdsApart(msg)
        self.producer_ids.add(new)

    # -- copying

    def fetch(self, at: int) -> None:
        """Send a fetch, whose answer arrives later, is lost, or is damaged on its way."""
        cluster, source = self.clusters[at], self.clusters[1 - at]
        index, own = self._partition(at)
        if not cluster.is_copying or self.is_cut or own.fault is not None or (at, index) in self.answers:
            return
        answer = self._answered(own, source.partitions[index])
        if answer is not None:
            self.answers[at, index] = answer

    def _answered(self, own: Partition, source: Partition) -> Answer | None:
        last_epoch = own.last_epoch()
        if last_epoch is not None:
            if last_epoch > source.epoch:
                return None
            parted = self._parted(own, source, last_epoch)
            if own.end >= source.log_start and parted is not None:
                return Answer(Truncated(parted), b"", source.log_start, own.end, own.epoch)
        if own.end < source.log_start:
            expired = Expired(Offset(source.log_start), self._deleted(source))
            return Answer(expired, b"", source.log_start, own.end, own.epoch)
        batches = [each for each in source.log if own.end <= each.offset < source.high_watermark]
        data = b"".join(each.data for each in batches[:ANSWER_BATCHES])
        if data and self.rng.random() < DAMAGE_CHANCE:
            damaged = bytearray(data)
            damaged[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
            data = bytes(damaged)
            self.counts["damaged"] += 1
        arrived = Arrived(Offset(own.end), None, Offset(source.log_start))
        return Answer(arrived, data, source.log_start, own.end, own.epoch)

    def _parted(self, own: Partition, source: Partition, last_epoch: LeaderEpoch) -> EpochEnd | None:
        return divergence(source.epochs(), Offset(source.end), last_epoch, Offset(own.end))

    def _deleted(self, source: Partition) -> EpochStart | None:
        """Return the epoch of the last record that the source has deleted."""
        return source.trimmed

    def receive(self, at: int) -> None:
        """Process an answer, which may have been overtaken by an election or a promotion."""
        index, own = self._partition(at)
        answer = self.answers.pop((at, index), None)
        if answer is None:
            return
        if self._is_late(self.clusters[at], own, answer):
            self.counts["late"] += 1
            return
        content, batches = answer.content, []
        if answer.data:
            try:
                checked = check_batches(memoryview(answer.data), BODY_BYTES_MAX)
            except ProblemError:
                own.fault = "source_damaged"
                return
            batches = unpacked(answer.data)
            content = checked.arrived(Offset(answer.log_start), Offset(0))
        log = MirrorLog(Offset(own.log_start), Offset(own.end), LeaderEpoch(own.epoch), own.epochs())
        step = next_step(log, content, OnTruncation.FOLLOW, OnExpiry.SKIP)
        self.counts[type(step).__name__] += 1
        match step:
            case Append(log_start):
                for each in batches:
                    own.append(each)
                # Records at offsets that the source has deleted are deleted here, whether or not the source had them.
                deleted = own.delete_to(min(log_start, own.high_watermark))
                self.judge.gone.update(each.value for each in deleted)
            case RaiseEpoch(epoch):
                own.epoch = epoch
            case Cut(offset):
                self._cut(self.clusters[at], own, offset)
            case Skip(offset, deleted):
                own.skipped |= set(range(own.end, offset))
                own.skip(offset, deleted)
            case Stop(reason):
                own.fault = str(reason)

    def _is_late(self, cluster: Cluster, own: Partition, answer: Answer) -> bool:
        return not cluster.is_copying or own.epoch != answer.epoch or own.end != answer.end

    def _cut(self, cluster: Cluster, own: Partition, offset: int) -> None:
        cluster.tail |= self._kept(own.cut(offset))
        if offset < own.log_start:
            self.counts["restarted"] += 1
            own.restart(offset)
        own.epoch += 1

    def _kept(self, removed: list[object]) -> set[bytes]:
        """Return the records that the file of a cut has."""
        return {each.value for each in removed}  # type: ignore[attr-defined]

    # -- groups

    def commit(self, at: int) -> None:
        """Commit the offset of a group in a cluster that accepts records."""
        _, partition = self._partition(at)
        if self.clusters[at].mirror is None:
            partition.committed = partition.high_watermark

    def copy_offsets(self, at: int) -> None:
        """Copy the offsets of the group."""
        cluster = self.clusters[at]
        if cluster.is_copying and not self.is_cut:
            self._copy_offsets(at)

    def _copy_offsets(self, at: int) -> None:
        source = self.clusters[1 - at]
        for own, other in zip(self.clusters[at].partitions, source.partitions, strict=True):
            own.committed = self._clamped(own, other.committed)
            if own.committed > own.high_watermark:
                msg = f"{own.committed} above {own.high_watermark}"
                raise NeverAhead(msg)

    def _clamped(self, own: Partition, offset: int) -> int:
        return min(offset, own.high_watermark)

    # -- promotions

    def hand_over(self, at: int) -> None:
        """Order a hand-over."""
        cluster = self.clusters[at]
        if (
            cluster.mirror is MirrorState.MIRRORING
            and self.clusters[1 - at].accepts
            and not cluster.is_taken_back
        ):
            cluster.mirror, cluster.is_planned = MirrorState.HANDING_OVER, True
            self.counts["hand-overs"] += 1

    def fail_over(self, at: int) -> None:
        """Order a failover."""
        cluster = self.clusters[at]
        if cluster.is_copying:
            cluster.mirror, cluster.is_planned = MirrorState.PROMOTING, False
            cluster.forget()
            self.counts["failovers"] += 1

    def give_up(self, at: int) -> None:
        """Order the end of a hand-over: the mirror first forgets it, and then the source is reopened."""
        cluster = self.clusters[at]
        if cluster.mirror is MirrorState.HANDING_OVER:
            cluster.mirror = MirrorState.MIRRORING
            self._abandon(cluster)
            cluster.is_taken_back = True
            self.counts["given up"] += 1

    def _abandon(self, cluster: Cluster) -> None:
        cluster.forget()

    def take_back(self, at: int) -> None:
        """Reopen the source of a hand-over that was given up."""
        cluster, source = self.clusters[at], self.clusters[1 - at]
        if cluster.is_taken_back and not self.is_cut and cluster.mirror is MirrorState.MIRRORING:
            cluster.is_taken_back = False
            source.handed_over = False
            source.told_ends = {}

    def crash_controller(self, at: int) -> None:
        """Let another broker become the controller, which knows nothing."""
        self.clusters[at].forget()

    def adopt(self, at: int) -> None:
        """Order that the old source follows the promoted topic."""
        own, other = self.clusters[at], self.clusters[1 - at]
        if own.mirror is not None or other.mirror is not None:
            return
        relation = kinship(own.eras, other.eras)
        if relation is Kinship.SAME_OR_OLDER and own.eras != other.eras:
            own.mirror, own.handed_over, own.eras = MirrorState.MIRRORING, False, other.eras
            own.told_ends = {}
            for each in own.partitions:
                each.skipped.clear()
            self.counts["adopted"] += 1

    def switch(self, at: int) -> None:
        """Take the next step of a promotion."""
        cluster = self.clusters[at]
        if cluster.mirror is None:
            return
        known = Known(
            None if cluster.ends is None else {PartitionIndex(key): end for key, end in cluster.ends.items()},
            {PartitionIndex(index): each.reached() for index, each in enumerate(cluster.partitions)},
            cluster.groups_copied,
            None if cluster.era is None else LeaderEpoch(cluster.era),
            sum(each.epoch < (cluster.era or 0) for each in cluster.partitions),
        )
        step = next_switch_step(cluster.mirror, known)
        if step is not None:
            self._switch(at, cluster, step)

    def _switch(self, at: int, cluster: Cluster, step: SwitchStep) -> None:
        self._note(step.name)
        match step:
            case SwitchStep.HAND_OVER:
                self._fence_and_ask(at)
            case SwitchStep.WAIT:
                pass
            case SwitchStep.COPY_GROUPS:
                if not self.is_cut:
                    self._copy_offsets(at)
                    cluster.groups_copied = True
            case SwitchStep.BEGIN_PROMOTION:
                cluster.mirror = MirrorState.PROMOTING
                cluster.forget()
            case SwitchStep.CHOOSE_ERA:
                epochs = [each.epoch for each in cluster.partitions]
                epochs += [each.log[-1].epoch for each in cluster.partitions if each.log]
                era = first_of_next_era(*map(LeaderEpoch, (*epochs, *self._known_eras(cluster))))
                assert era is not None, "there are 2,047 eras"
                cluster.era = era
            case SwitchStep.BEGIN_ERAS:
                left = [each for each in cluster.partitions if each.epoch < (cluster.era or 0)]
                self.rng.choice(left).epoch = cluster.era or 0
            case SwitchStep.FINISH:
                assert cluster.era is not None, "the era was chosen"
                for each in cluster.partitions:
                    each.fault = None
                cluster.eras = (*cluster.eras, Era(cluster.era, cluster.name))
                cluster.mirror, cluster.era, cluster.handed_over = None, None, False
                cluster.is_taken_back = False
                self.counts["promoted"] += 1
                if cluster.is_planned:
                    self.judge.finished(cluster, self.clusters)

    def _known_eras(self, cluster: Cluster) -> list[int]:
        return [each.epoch for each in cluster.eras]

    def _fence_and_ask(self, at: int) -> None:
        """Make the source refuse records, and learn its ends once no append can move them."""
        source = self.clusters[1 - at]
        if self.is_cut or source.mirror is not None:
            return
        self._fence(source)
        # The answer may be lost after the source has stored the hand-over.
        if all(self._is_drained(each) for each in source.partitions) and self.rng.random() < 0.8:
            self.clusters[at].ends = {index: each.reached() for index, each in enumerate(source.partitions)}
            source.told_ends = {index: each.high_watermark for index, each in enumerate(source.partitions)}

    def _fence(self, source: Cluster) -> None:
        source.handed_over = True

    def _is_drained(self, partition: Partition) -> bool:
        return partition.high_watermark == partition.end

    def acknowledge(self, at: int) -> None:
        """Let stopped partitions continue."""
        for each in self.clusters[at].partitions:
            each.fault = None

    def change_network(self, _: int) -> None:
        """Cut the network between the clusters, or repair it; answers on their way are lost."""
        self.is_cut = not self.is_cut
        self.answers.clear()

    # -- the choice of topics

    def survey(self, at: int) -> None:
        """List the topics of the other cluster, which mirrors a topic that this cluster created and deleted."""
        own, other = self.clusters[at].name, self.clusters[1 - at].name
        deleted_long_ago = LocalTopics(own, (), (), mirrored=(), promoted=(), deleted=())
        topic = SourceTopic("returning", TopicId("own"), (own,))
        if blocked(topic, topic.name, deleted_long_ago) is None:
            msg = f"{own} mirrors its own topic from {other}"
            raise NoCycle(msg)


def run(seed: int, *, traced: bool = False) -> Verdict:
    """Run the world of a seed."""
    world = World(seed, traced=traced)
    violation = violation_of(world.run)
    world.digest.update(repr([each.partitions for each in world.clusters]).encode())
    return Verdict(
        seed,
        violation,
        world.digest.hexdigest(),
        happened=STEPS,
        counts=dict(world.counts),
        trace=world.trace,
    )

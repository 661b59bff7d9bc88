"""Reports commits to the leaders of the partitions until each leader has confirmed its marker (rule 7.3.1).

The broker that wrote a commit reports the commit. The reports are kept only in memory, because a leader without a
report finds the commit when it reads the producer's record. A partition of a deleted topic counts as confirmed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from fairlead_api.batch.control_batches import MarkerKind
from fairlead_api.identifiers import BrokerId, PartitionIndex, ProducerEpoch, ProducerId, TimestampUs, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.peers.peers import Peers, PeerUnavailable
from fairlead_broker.peers.transaction_messages import EndMessage, EndsRequest
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.transaction_records import TransactionRecord
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.leading.producer_order import PendingProduce
from fairlead_broker.runtime.requests import TransactionEnd

FIRST_RETRY_SECONDS: Final = 0.1
RETRY_SECONDS_MAX: Final = 5.0
MARKER_SECONDS_MAX: Final = 4.0
"""Maximum number of seconds for which a leader waits until a marker is committed."""
ENDS_MAX: Final = 1_000
"""Maximum number of transaction ends in one request to a leader."""
CLEAN_SECONDS: Final = 10.0
"""Seconds after a confirmation until the producer's record is written without its confirmed commits, unless another
change has written it."""


class End(NamedTuple):
    """Commit whose marker must be appended in a partition."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    topic_id: TopicId
    partition: PartitionIndex


@dataclass(slots=True)
class _Due:
    decided_us: TimestampUs
    since: float
    """Monotonic time at which the commit was first found unconfirmed in the partition."""
    at: float
    delay: float = FIRST_RETRY_SECONDS
    is_under_way: bool = False


class TransactionEnds:
    """Commits that partitions have not yet confirmed, and confirmed commits that transaction records still contain."""

    __slots__ = (
        "_clean_at",
        "_clock",
        "_confirmed",
        "_due",
        "_ended",
        "_find",
        "_metadata",
        "_peers",
        "_spawn",
        "_unconfirmed",
        "_wake",
    )

    def __init__(
        self,
        find: Callable[[TopicId, PartitionIndex], LeaderReplica],
        metadata: ClusterMetadata,
        peers: Peers,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
        ended: Callable[[float], None],
    ) -> None:
        """`find` raises a problem if this broker does not lead the partition.

        `ended` is called with the seconds after which all partitions of a commit have confirmed their markers.
        """
        self._find = find
        self._metadata = metadata
        self._peers = peers
        self._clock = clock
        self._spawn = spawn
        self._ended = ended
        self._due: dict[End, _Due] = {}
        self._unconfirmed: Counter[tuple[ProducerId, ProducerEpoch]] = Counter()
        """Number of partitions of each commit that have not confirmed their marker."""
        self._confirmed: dict[ProducerId, set[tuple[ProducerEpoch, TopicId, int]]] = {}
        self._clean_at: dict[ProducerId, float] = {}
        self._wake = asyncio.Event()

    @property
    def unconfirmed(self) -> int:
        """Number of markers that partitions have not confirmed."""
        return len(self._due)

    def confirmed(self, producer_id: ProducerId) -> set[tuple[ProducerEpoch, TopicId, int]]:
        """Return the confirmed markers of a producer's unfinished commits."""
        return self._confirmed.get(producer_id, set())

    def written(self, producer_id: ProducerId, record: TransactionRecord) -> None:
        """Report to the leaders the unfinished commits of a record that was just written or read."""
        now = self._clock.monotonic()
        listed = {
            (commit.epoch, topic_id, partition)
            for commit in record.unfinished
            for topic_id, partitions in commit.partitions.items()
            for partition in partitions
        }
        confirmed = self.confirmed(producer_id) & listed
        if confirmed:
            self._confirmed[producer_id] = confirmed
        else:
            self.cleaned(producer_id)
        due = self._due
        own = []
        for epoch, topic_id, partition in listed - confirmed:
            end = End(producer_id, epoch, topic_id, PartitionIndex(partition))
            if end not in due:
                due[end] = _Due(record.used_us, now, now)
                self._unconfirmed[producer_id, end.epoch] += 1
                if self._leader(end) == self._peers.own.broker:
                    own.append(end)
        if own:
            # The markers are queued before the commit is answered. Reports to other leaders wait for the task, which
            # combines the commits of many producers.
            self._report(self._peers.own.broker, own)
        if due:
            self._wake.set()

    def cleaned(self, producer_id: ProducerId) -> None:
        """Forget the confirmed commits of a producer whose record contains none of them or is deleted."""
        self._confirmed.pop(producer_id, None)
        self._clean_at.pop(producer_id, None)

    async def run(self, clean: Callable[[ProducerId], Awaitable[None]]) -> None:
        """Report commits to leaders until cancelled.

        `clean` writes the record of a producer without its confirmed commits.
        """
        while True:
            now = self._clock.monotonic()
            self._report_due(now)
            self._clean_due(now, clean)
            times = [due.at for due in self._due.values() if not due.is_under_way]
            soonest = min([*times, *self._clean_at.values()], default=None)
            try:
                async with asyncio.timeout(None if soonest is None else max(soonest - now, 0.01)):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    async def end_here(self, ends: Sequence[EndMessage]) -> list[bool]:
        """Append the markers of commits in partitions led by this broker; return the commits with committed markers."""
        return await _confirmed(self._queue_markers(ends))

    def _queue_markers(self, ends: Sequence[EndMessage]) -> PendingProduce:
        """Queue the markers of commits in partitions led by this broker; the call gets their outcomes."""
        call = PendingProduce(len(ends))
        for slot, end in enumerate(ends):
            decided = TransactionEnd(end.producer_id, end.epoch, MarkerKind.COMMIT, end.decided_us)
            try:
                self._find(end.topic_id, end.partition).queue_end(call, slot, decided)
            except ProblemError as problem:
                # The next report goes to the leader that the mirror shows at that time.
                call.settle(slot, problem)
        return call

    def _report_due(self, now: float) -> None:
        by_leader: dict[BrokerId | None, list[End]] = defaultdict(list)
        for end, due in self._due.items():
            if not due.is_under_way and due.at <= now:
                by_leader[self._leader(end)].append(end)
        for leader, ends in by_leader.items():
            if leader is None:
                self._answered(ends, [self._is_deleted(end) for end in ends])
                continue
            for at in range(0, len(ends), ENDS_MAX):
                self._report(leader, ends[at : at + ENDS_MAX])

    def _report(self, leader: BrokerId, ends: Sequence[End]) -> None:
        """Queue the markers of commits in own partitions, or send the commits to their leader."""
        messages = []
        for end in ends:
            due = self._due[end]
            due.is_under_way = True
            messages.append(EndMessage(*end, due.decided_us))
        if leader == self._peers.own.broker:
            answers = partial(_confirmed, self._queue_markers(messages))
        else:
            answers = partial(self._peers.transaction_ends, leader, EndsRequest(ends=messages))
        self._spawn(self._take_answers(ends, answers), "transaction ends")

    async def _take_answers(
        self, ends: Sequence[End], answers: Callable[[], Awaitable[Iterable[bool]]]
    ) -> None:
        confirmed: Iterable[bool] = [False] * len(ends)
        try:
            confirmed = await answers()
        except (PeerUnavailable, ProblemError):
            pass
        finally:
            self._answered(ends, confirmed)
            self._wake.set()

    def _answered(self, ends: Sequence[End], confirmed: Iterable[bool]) -> None:
        now = self._clock.monotonic()
        for end, is_confirmed in zip(ends, confirmed, strict=True):
            due = self._due[end]
            if is_confirmed:
                del self._due[end]
                self._count_confirmed(end, now - due.since)
                of_producer = self._confirmed.setdefault(end.producer_id, set())
                of_producer.add((end.epoch, end.topic_id, end.partition))
                self._clean_at.setdefault(end.producer_id, now + CLEAN_SECONDS)
            else:
                due.is_under_way = False
                due.at = now + due.delay
                due.delay = min(due.delay * 2, RETRY_SECONDS_MAX)

    def _count_confirmed(self, end: End, seconds: float) -> None:
        commit = (end.producer_id, end.epoch)
        self._unconfirmed[commit] -= 1
        if not self._unconfirmed[commit]:
            del self._unconfirmed[commit]
            self._ended(seconds)

    def _clean_due(self, now: float, clean: Callable[[ProducerId], Awaitable[None]]) -> None:
        for producer_id in [each for each, at in self._clean_at.items() if at <= now]:
            self._clean_at[producer_id] = now + CLEAN_SECONDS
            self._spawn(_attempt(clean, producer_id), "transaction record")

    def _leader(self, end: End) -> BrokerId | None:
        record = self._metadata.partitions(end.topic_id).get(end.partition)
        leader = record and record.value.leader
        return leader.broker if leader else None

    def _is_deleted(self, end: End) -> bool:
        return end.topic_id in self._metadata.deleted_topics


async def _confirmed(call: PendingProduce) -> list[bool]:
    return [not isinstance(answer, ProblemError) for answer in await call.wait(MARKER_SECONDS_MAX)]


async def _attempt(clean: Callable[[ProducerId], Awaitable[None]], producer_id: ProducerId) -> None:
    # A failed attempt is retried later.
    with suppress(ProblemError):
        await clean(producer_id)

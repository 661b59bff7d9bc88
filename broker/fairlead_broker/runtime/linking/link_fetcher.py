"""Fetches of one link: one long poll to each leader of the source, for the mirrors that this broker leads.

    poll ──▶ answer ──▶ checks ──▶ `links.copying` decides ──▶ append, raise, cut, skip or stop ──▶ next poll

An instance runs until its link has no mirror here. It fetches only partitions whose answers are processed, so at most
one answer from each leader of the source is in memory.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never, cast

import msgspec

from fairlead_api.bodies.frames import Frame
from fairlead_api.bodies.requests import RAW, FetchRequest, PartitionFetchRequest
from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex, TopicIdPartition
from fairlead_api.problems import JSON, ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.coordination.protocol import CoordinationError
from fairlead_broker.links.copying import (
    Append,
    Arrived,
    Cut,
    FaultReason,
    LogStart,
    MirrorLog,
    NoteRemoved,
    OnExpiry,
    OnTruncation,
    RaiseEpoch,
    Skip,
    Stop,
    Truncated,
    followed_start,
    next_step,
)
from fairlead_broker.log import BadCopy, LogError
from fairlead_broker.registry.link_records import LinkRecord, LinkState
from fairlead_broker.runtime.engine.containment import contained
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.hosting.replicas import Replicas
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.leading.mirror_copies import MirrorCopies
from fairlead_broker.runtime.linking.arrivals import CheckedBatches, answer_in, check_batches
from fairlead_broker.runtime.linking.link_rates import LinkRates
from fairlead_broker.runtime.linking.mirror_records import COPIES, MirrorRecords
from fairlead_broker.sources.source_cluster import SourceCluster, SourceUnreachable
from fairlead_broker.sources.sources import Sources, check_source
from fairlead_broker.telemetry import Log

WAIT_MS: Final = 1_000
"""Maximum wait of a poll. A new mirror is fetched from the next poll on."""
ANSWER_BYTES_MAX: Final = 16 << 20
BEHIND_MAX: Final = 4
"""Number of partitions that are far behind and are copied at once: the divisor of the size of an answer that yields the
maximum size for one partition. Partitions with the smallest lag come first, so the other partitions are copied in turn,
and the page cache of the source is not filled with old records of all partitions."""
ROOM_SECONDS_MAX: Final = 1.0
"""Seconds after which a wait for the rate of the link looks at the link again, which may have changed."""
METADATA_SECONDS: Final = 10.0
"""Maximum age of the source's metadata, which name the leaders."""
BACKOFF_SECONDS_MIN: Final = 0.1
BACKOFF_SECONDS_MAX: Final = 10.0


class _FrameMeta(msgspec.Struct):
    """Metadata of a frame with data or with a problem."""

    topic_id: str
    partition: int
    next_offset: int = -1
    high_watermark: int = -1
    log_start_offset: int = 0
    deleted_to: int = 0
    removed_to: int = 0
    problem: dict[str, object] | None = None


_EXPECTED: Final = (SourceUnreachable, ProblemError, CoordinationError)
_META: Final = msgspec.json.Decoder(_FrameMeta)


@dataclass(frozen=True, slots=True)
class CopyParts:
    """Components that the fetchers of all links share."""

    sources: Sources
    replicas: Replicas
    copies: MirrorCopies
    records: MirrorRecords
    rates: LinkRates
    pool: DiskPool
    clock: Clock
    decompressed_bytes_max: int
    count: Callable[[str, str, str, int], None]
    """Function that counts fetched bytes, skipped records or truncated records, by kind, link and topic."""
    count_failure: Callable[[str], None]
    """Function that counts failed fetches by link."""
    log: Log


class LinkFetcher:
    """Fetcher of the mirrors of one link."""

    def __init__(
        self,
        name: str,
        link: Callable[[], LinkRecord | None],
        mirrors: Callable[[], Sequence[LeaderReplica]],
        parts: CopyParts,
    ) -> None:
        """`link` returns the current record, and `mirrors` the mirrors to fetch now."""
        self._name = name
        self._link = link
        self._mirrors = mirrors
        self._parts = parts
        self._log = parts.log.bind(link=name)
        self._leaders: dict[TopicIdPartition, str] = {}
        self._known_at = float("-inf")
        self._is_known = False
        """Whether the leaders of the source are known, even if they may have changed."""
        self._stale: set[str] = set()
        """Addresses of brokers that failed or no longer lead all their partitions. They are not polled until a call for
        the metadata has ended.
        """
        self._learning: asyncio.Task[None] | None = None
        self._polls: dict[str, asyncio.Task[None]] = {}
        """Running poll of each leader of the source, by address."""
        self._in_flight: set[TopicIdPartition] = set()
        self._failures: dict[str, int] = {}

    async def run(self) -> None:
        """Fetch until no mirror is left, or the link is paused or deleted."""
        try:
            while (link := self._link()) is not None and link.state is LinkState.RUNNING:
                mirrors = [each for each in self._mirrors() if each.copying.fault is None]
                if not mirrors:
                    return
                try:
                    source = self._parts.sources.of(self._name, link.source)
                except SourceUnreachable as error:
                    await self._back_off("", mirrors, error)
                    continue
                self._start_learning(source, link, mirrors)
                if self._is_known:
                    self._start_polls(source, link, mirrors)
                await asyncio.wait(self._tasks(), return_when=asyncio.FIRST_COMPLETED)
                self._end_polls()
        finally:
            # This task owns the polls; all polls have ended when the task ends.
            tasks = self._tasks()
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    def _tasks(self) -> list[asyncio.Task[None]]:
        learning = [] if self._learning is None else [self._learning]
        return [*learning, *self._polls.values()]

    def _start_learning(
        self, source: SourceCluster, link: LinkRecord, mirrors: Sequence[LeaderReplica]
    ) -> None:
        """Learn the leaders of the source beside the polls, which a silent broker must not stop."""
        is_due = self._parts.clock.monotonic() - self._known_at >= METADATA_SECONDS
        if self._learning is None and is_due:
            learning = self._learn(source, link, mirrors)
            name = f"{self._name}: metadata"
            self._learning = asyncio.get_running_loop().create_task(learning, name=name)

    async def _learn(self, source: SourceCluster, link: LinkRecord, mirrors: Sequence[LeaderReplica]) -> None:
        """Learn the leaders of the source; wait after a failure."""
        try:
            await self._learn_leaders(source, link)
            self._failures.pop("", None)
        except _EXPECTED as error:
            if isinstance(error, ProblemError) and error.code == "link_source_changed":
                self._is_known = False  # The other cluster has none of the mirrored topics.
            await self._back_off("", () if self._is_known else mirrors, error)
        finally:
            self._stale.clear()

    def _start_polls(self, source: SourceCluster, link: LinkRecord, mirrors: Sequence[LeaderReplica]) -> None:
        """Start a poll of each leader of the source that has no running poll."""
        by_leader: defaultdict[str, list[LeaderReplica]] = defaultdict(list)
        for mirror in mirrors:
            # The broker at the first address forwards a fetch for a partition whose leader is not known.
            address = self._leaders.get(mirror.key, link.source.bootstrap[0])
            is_polled = address in self._polls or address in self._stale
            if mirror.key not in self._in_flight and not is_polled:
                by_leader[address].append(mirror)
        for address, each in by_leader.items():
            self._in_flight.update(mirror.key for mirror in each)
            poll = self._poll(source, link, address, each)
            self._polls[address] = asyncio.get_running_loop().create_task(
                poll, name=f"{self._name}: {address}"
            )

    def _end_polls(self) -> None:
        if self._learning is not None and self._learning.done():
            learning, self._learning = self._learning, None
            learning.result()
        for address, poll in list(self._polls.items()):
            if poll.done():
                del self._polls[address]
                poll.result()

    async def _poll(
        self, source: SourceCluster, link: LinkRecord, address: str, mirrors: Sequence[LeaderReplica]
    ) -> None:
        """Fetch from one leader of the source, and process the answer; wait after a failure."""
        try:
            failure = await self._failure_of(self._fetch(source, link, address, mirrors), address)
            if failure is None:
                self._failures.pop(address, None)
            else:
                self._stale.add(address)
                await self._back_off(address, mirrors, failure)
        finally:
            self._in_flight.difference_update(mirror.key for mirror in mirrors)

    async def _failure_of(self, fetching: Coroutine[Any, Any, bool], address: str) -> Exception | None:
        """Return the error with which a fetch failed; None if it succeeded.

        A source may send anything, so no answer must be able to stop the broker.
        """
        try:
            with contained(self._log, "fetch of mirrors", address):
                try:
                    if await fetching:
                        self._known_at = float("-inf")
                        self._stale.add(address)
                except _EXPECTED as error:
                    return error
        except LogError as error:
            return error
        return None

    async def _back_off(self, address: str, mirrors: Sequence[LeaderReplica], error: Exception) -> None:
        reason = error.detail if isinstance(error, ProblemError) else str(error)
        self._parts.count_failure(self._name)
        failures = self._failures[address] = self._failures.get(address, 0) + 1
        if failures == 1:
            self._log.warning("mirrors not fetched", address=address, reason=reason)
        for mirror in mirrors:
            mirror.copying.problem = reason
        self._known_at = float("-inf")
        seconds = min(BACKOFF_SECONDS_MIN * 2 ** min(failures - 1, 10), BACKOFF_SECONDS_MAX)
        await asyncio.sleep(seconds)  # noqa: TID251 - no event announces that the source answers again

    async def _learn_leaders(self, source: SourceCluster, link: LinkRecord) -> None:
        # The metadata are as old as the call: a poll may learn during the call that a leader has changed.
        self._known_at = self._parts.clock.monotonic()
        metadata = await source.metadata()
        check_source(self._name, link.source, metadata.cluster_id)
        addresses = {each.id: each.address for each in metadata.brokers if each.address}
        self._leaders = {
            TopicIdPartition(topic.topic_id, PartitionIndex(each.partition)): addresses[each.leader]  # type: ignore[arg-type]
            for topic in metadata.topics
            for each in topic.partitions
            if each.leader in addresses
        }
        self._is_known = True

    async def _fetch(
        self, source: SourceCluster, link: LinkRecord, address: str, mirrors: Sequence[LeaderReplica]
    ) -> bool:
        """Fetch from one leader of the source; return whether the metadata of the source are outdated."""
        asked = {(str(each.topic_id), int(each.index)): each for each in mirrors}
        rates = self._parts.rates
        if not await self._is_admitted():
            return False
        frames = await source.fetch(address, _request(mirrors, rates.bytes_max(self._name, ANSWER_BYTES_MAX)))
        rates.fetched(self._name, sum(len(frame.data) for frame in frames))
        raised: dict[TopicIdPartition, LeaderEpoch] = {}
        is_outdated = False
        for frame in frames:
            meta = _META.decode(frame.meta)
            mirror = asked.pop((meta.topic_id, meta.partition), None)
            if mirror is None or not self._is_copied(mirror):
                continue
            is_outdated |= await self._take(link, mirror, meta, frame, raised)
        if raised:
            await self._parts.records.raise_epochs(raised)
        return is_outdated

    def _is_copied(self, mirror: LeaderReplica) -> bool:
        """Return whether an answer still applies to a mirror, which may have changed during the poll."""
        link = self._link()
        return (
            link is not None
            and link.state is LinkState.RUNNING
            and not mirror.closed
            and mirror.mirror is not None
            and mirror.mirror.state in COPIES
        )

    async def _is_admitted(self) -> bool:
        """Wait until the link's rate admits the next answer; return False if the link ends or is paused first."""
        while (link := self._link()) is not None and link.state is LinkState.RUNNING:
            self._parts.rates.follow(self._name, link.bytes_per_second)
            seconds = self._parts.rates.wait_seconds(self._name)
            if seconds <= 0:
                return True
            await asyncio.sleep(min(seconds, ROOM_SECONDS_MAX))  # noqa: TID251 - room comes with time
        return False

    async def _take(
        self,
        link: LinkRecord,
        mirror: LeaderReplica,
        meta: _FrameMeta,
        frame: Frame,
        raised: dict[TopicIdPartition, LeaderEpoch],
    ) -> bool:
        """Process the answer for one partition; return whether the source's metadata are outdated."""
        batches: CheckedBatches | None = None
        if meta.problem is not None:
            problem = ProblemError.from_document(cast("Mapping[str, JSON]", meta.problem))
            answer = answer_in(problem)
            if answer is None:
                mirror.copying.problem = f"{problem.code}: {problem.detail}"
                return True
        else:
            mirror.copying.answered(Offset(meta.high_watermark), self._parts.clock.monotonic())
            log_start = _followed_start(link, meta)
            removed_to = Offset(meta.removed_to)
            answer = Arrived(mirror.log_end_offset, None, log_start, removed_to)
            if frame.data:
                try:
                    check = self._parts.pool.submit(
                        check_batches, frame.data, self._parts.decompressed_bytes_max
                    )
                    batches = await check
                except ProblemError as damaged:
                    self._stop(
                        mirror, Stop(FaultReason.SOURCE_DAMAGED, mirror.log_end_offset), damaged.detail
                    )
                    return False
                answer = batches.arrived(log_start, removed_to)
        accepted = mirror.copying.accepted
        step = next_step(
            _log_of(mirror),
            answer,
            OnTruncation.FOLLOW
            if accepted == FaultReason.SOURCE_TRUNCATED
            else OnTruncation(link.policies.truncated),
            OnExpiry.SKIP if accepted == FaultReason.SOURCE_EXPIRED else OnExpiry(link.policies.expired),
        )
        mirror.copying.accepted = None
        match step:
            case Append(log_start):
                await self._append(mirror, batches, log_start, Offset(meta.deleted_to))
            case RaiseEpoch(epoch):
                raised[mirror.key] = epoch
            case Cut(offset):
                await self._cut(mirror, offset, is_loss=isinstance(answer, Truncated))
            case Skip():
                await self._skip(mirror, step)
            case NoteRemoved(offset, gap_from):
                await self._note_removed(mirror, offset, gap_from)
            case Stop():
                self._stop(mirror, step, "")
            case _:
                assert_never(step)
        return False

    async def _append(
        self, mirror: LeaderReplica, batches: CheckedBatches | None, log_start: Offset, deleted_to: Offset
    ) -> None:
        if batches is not None:
            try:
                await self._parts.copies.append(mirror, batches.data, batches.count)
            except BadCopy as bad:
                self._stop(mirror, Stop(FaultReason.SOURCE_DAMAGED, mirror.log_end_offset), str(bad))
                return
            self._parts.count("fetched", self._name, mirror.topic, len(batches.data))
        known = mirror.copying.source_high_watermark
        if known is not None and mirror.log_end_offset >= known:
            mirror.copying.caught_up(self._parts.clock.monotonic())
        await self._parts.copies.follow_start(mirror, log_start, deleted_to)

    async def _cut(self, mirror: LeaderReplica, offset: Offset, *, is_loss: bool) -> None:
        key, end, kept = mirror.key, mirror.log_end_offset, max(offset, mirror.log_start_offset)
        lost = end - kept
        if is_loss:
            if lost and not await self._parts.records.note_loss(key, kept, end, skipped=False):
                return
            self._log.warning(
                "records dropped that the source has lost",
                partition=f"{mirror.topic}-{mirror.index}",
                offset=offset,
                records=lost,
            )
            self._parts.count("truncated", self._name, mirror.topic, lost)
            mirror.copying.truncated += lost
        raising = self._parts.records.raise_until_changed
        await self._parts.replicas.cut(key, offset, lambda: raising(key), keeps_tail=is_loss)

    async def _skip(self, mirror: LeaderReplica, step: Skip) -> None:
        offset, end = step.offset, mirror.log_end_offset
        if end > 0:
            if not await self._note_skipped(mirror, end, offset):
                return
            self._log.warning(
                "records skipped that the source has deleted",
                partition=f"{mirror.topic}-{mirror.index}",
                first=end,
                next=offset,
            )
        await self._parts.copies.skip(mirror, offset, step.deleted)

    async def _note_removed(self, mirror: LeaderReplica, offset: Offset, gap_from: Offset | None) -> None:
        if gap_from is not None:
            if not await self._note_skipped(mirror, gap_from, offset):
                return
            self._log.warning(
                "tombstones missing that the source has removed",
                partition=f"{mirror.topic}-{mirror.index}",
                first=gap_from,
                next=offset,
            )
        await self._parts.copies.note_removed(mirror, offset)

    async def _note_skipped(self, mirror: LeaderReplica, first: Offset, following: Offset) -> bool:
        """Store and count the gap from an offset to another; return False if the gap cannot be stored."""
        if not await self._parts.records.note_loss(mirror.key, first, following, skipped=True):
            return False
        self._parts.count("skipped", self._name, mirror.topic, following - first)
        mirror.copying.skipped += following - first
        return True

    def _stop(self, mirror: LeaderReplica, step: Stop, detail: str) -> None:
        link = self._link()
        mirror.copying.stopped(str(step.reason), 0 if link is None else link.acknowledgements)
        self._log.error(
            "mirror stopped",
            partition=f"{mirror.topic}-{mirror.index}",
            reason=str(step.reason),
            offset=step.offset,
            detail=detail,
        )


def _log_of(mirror: LeaderReplica) -> MirrorLog:
    return MirrorLog(
        mirror.log_start_offset,
        mirror.log_end_offset,
        mirror.leader_epoch,
        mirror.log.leader_epochs,
        Offset(mirror.log.cleaning.removed),
    )


def _followed_start(link: LinkRecord, meta: _FrameMeta) -> Offset:
    policy = LogStart(link.policies.log_start)
    return followed_start(policy, Offset(meta.log_start_offset), Offset(meta.deleted_to))


def _request(mirrors: Sequence[LeaderReplica], bytes_max: int) -> FetchRequest:
    """Return a fetch that begins with the partitions with the smallest lag, so that their lag stays small."""
    return FetchRequest(
        max_wait_ms=WAIT_MS,
        max_bytes=bytes_max,
        isolation=RAW,
        partitions=[
            PartitionFetchRequest(
                topic_id=each.topic_id,
                partition=each.index,
                offset=each.log_end_offset,
                last_epoch=each.log.last_epoch,
                max_bytes=bytes_max // BEHIND_MAX,
            )
            for each in sorted(mirrors, key=_behind)
        ],
    )


def _behind(mirror: LeaderReplica) -> int:
    known = mirror.copying.source_high_watermark
    return 0 if known is None else max(0, known - mirror.log_end_offset)

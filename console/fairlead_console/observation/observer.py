"""Queries the cluster every ten seconds with the identity of a caller, and keeps the history of rates and lags.

A long round is followed by a longer pause, so that the console uses only a small share of a processor, even if the
cluster is large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NoReturn, TypeVar

from fairlead import Admin, OffsetAndTimestamp, TopicPartition, clock
from fairlead.errors import (
    ClusterError,
    FairleadError,
    ForbiddenError,
    PartitionNotFoundError,
    TopicNotFoundError,
    TopicRecreatedError,
    UnauthenticatedError,
    UnreachableError,
)
from fairlead_api.bodies.group_answers import LagAnswer
from fairlead_api.bodies.metadata import BrokerDescription, Metadata, TopicDescription, Versions
from fairlead_api.bodies.operations import TopicSizes
from fairlead_api.bodies.security import WhoAmI
from fairlead_console.observation.history import History, grown
from fairlead_console.observation.picture import (
    LISTED_SETTINGS,
    LogEnds,
    Picture,
    Topic,
    byte_rates,
    ends_with_last_known,
    outlined,
    silent_brokers,
)

T = TypeVar("T")
ROUND_SECONDS: Final = 10.0
PAUSE_FACTOR: Final = 20
"""Pause after a round, as a multiple of the round's duration."""
PAUSE_SECONDS_MAX: Final = 60.0
"""Maximum pause after a round, because a round is also long on a busy machine."""
REFUSED_SECONDS: Final = 300.0
"""Pause after the cluster has refused the caller."""
DESCRIPTIONS_SECONDS: Final = 60.0
"""Age at which the settings of topics are read again even though no topic has changed."""
SKETCHED_TOPICS_MIN: Final = 200
"""Number of topics above which pages do not wait for the first round."""
CALLS_MAX: Final = 8
"""Maximum number of calls for lags in flight."""


class Observer:
    """The newest picture of a cluster, and the history of the last hour."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._lock = asyncio.Lock()
        self._picture: Picture | None = None
        self._sketching = asyncio.Lock()
        self._sketch: Picture | None = None
        self._descriptions: Mapping[str, TopicDescription] = {}
        self._described_at = float("-inf")
        self.trouble: FairleadError | None = None
        """Error of the newest round; None if the cluster has answered."""
        self.rates = History()
        """Records per second by topic; the empty name has the rate of all topics together."""
        self.byte_rates = History()
        """Stored bytes per second by topic; the empty name has the rate of all topics together."""
        self.lags = History()
        """Lag in records by group."""
        self.lag_seconds = History()

    async def run(self) -> NoReturn:
        """Query the cluster repeatedly until the task is cancelled."""
        while True:
            begun = clock.monotonic()
            pause = ROUND_SECONDS
            try:
                # The first pages of a cluster with many topics wait only for the sketch, a picture without offsets,
                # sizes, settings and groups, so no other call precedes the sketch.
                await self._take_sketch()
                await self._round(described=False)
            except UnauthenticatedError:
                # Each refused call adds a line to the cluster's audit log.
                pause = REFUSED_SECONDS
            except FairleadError:
                pass
            if self.trouble is None and not self.silent:
                # A round that waits for brokers uses hardly any processor time.
                pause = max(pause, min(PAUSE_SECONDS_MAX, PAUSE_FACTOR * (clock.monotonic() - begun)))
            await asyncio.sleep(pause)  # noqa: TID251 - rounds have a fixed distance

    async def picture(self) -> Picture:
        """Return the newest picture; if there is none yet, query the cluster. Raises the errors of the SDK.

        The first round in a cluster with many topics takes seconds. Until it ends, the picture is a sketch, which lacks
        offsets, sizes, settings and groups.
        """
        if self._picture is None:
            await self._take_sketch()
        if (
            self._picture is None
            and self._sketch is not None
            and len(self._sketch.topics) > SKETCHED_TOPICS_MIN
        ):
            return self._sketch
        if self._picture is None:
            async with self._lock:
                if self._picture is None:
                    await self._look(described=True)
        assert self._picture is not None, "a round without an error sets the picture"
        return self._picture

    @property
    def silent(self) -> frozenset[int]:
        """Brokers that did not answer in the newest complete round."""
        return frozenset() if self._picture is None else self._picture.silent

    def unanswered(self, topic: str) -> frozenset[int]:
        """Return the partitions of a topic that these brokers led then."""
        return frozenset() if self._picture is None else self._picture.unanswered(topic)

    async def refresh(self) -> None:
        """Query the cluster again now, after a change."""
        with suppress(FairleadError):
            await self._round(described=True)

    async def _round(self, *, described: bool) -> None:
        async with self._lock:
            await self._look(described=described)

    async def _look(self, *, described: bool) -> None:
        try:
            before, now = self._picture, await self._ask(described=described)
        except FairleadError as error:
            self.trouble = error
            if isinstance(error, UnauthenticatedError):
                self._picture = self._sketch = None
            raise
        self.trouble, self._picture, self._sketch = None, now, None
        if before is not None:
            self.rates.append(now.at, {"": now.rate} | {name: each.rate for name, each in now.topics.items()})
            self.byte_rates.append(
                now.at, {"": now.byte_rate} | {name: each.byte_rate for name, each in now.topics.items()}
            )
            self.lags.append(now.at, {name: each.total_records for name, each in now.lags.items()})
            self.lag_seconds.append(now.at, {name: each.max_seconds for name, each in now.lags.items()})

    async def _take_sketch(self) -> None:
        async with self._sketching:
            if self._picture is None and self._sketch is None:
                self._sketch = await self._sketched()

    async def _sketched(self) -> Picture:
        """Return a picture without offsets, sizes and settings, which needs one call for all topics."""
        caller, versions, metadata, brokers = await self._outline()
        topics = {topic.name: Topic(outlined(topic), topic.partitions, {}) for topic in metadata.topics}
        return Picture(clock.now_ns() / 1e9, versions, caller, metadata, brokers, topics, is_sketch=True)

    async def _outline(self) -> tuple[WhoAmI, Versions, Metadata, list[BrokerDescription]]:
        admin = self._admin
        caller, versions, metadata = await admin.whoami(), await admin.versions(), await admin.metadata()
        return caller, versions, metadata, await _permitted(admin.brokers())

    async def _ask(self, *, described: bool) -> Picture:
        admin = self._admin
        sketch = self._sketch if self.trouble is None else None
        if sketch is None:
            caller, versions, metadata, brokers = await self._outline()
        else:
            caller, versions, metadata, brokers = (
                sketch.caller, sketch.versions, sketch.metadata, sketch.brokers
            )  # fmt: skip
        descriptions = await self._topic_descriptions(metadata, described=described)
        reports = {each.broker: each for each in await _permitted(admin.broker_reports())}
        ends, silent = await _log_ends(admin, metadata, silent_brokers(reports.values()))
        at = clock.now_ns() / 1e9
        groups = [each.group for each in await admin.list_groups()]
        before = self._picture
        earlier = {} if before is None else before.lags
        known = {group: earlier[group] for group in groups if group in earlier}
        sizes: Mapping[str, Mapping[int, Mapping[int, int]]] = {}
        lags: Mapping[str, LagAnswer] = known
        if not silent:
            sizes = _by_replica(await admin.replica_sizes())
            lags = await _group_lags(admin, groups, known)
        elif before is not None:
            # Coordinators and the broker that collects the sizes would wait for the silent brokers in every call.
            sizes = {name: topic.sizes for name, topic in before.topics.items()}
            ends = ends_with_last_known(ends, before.topics, metadata)
        rates = self._rates(ends, at)
        topics = {
            topic.name: Topic(
                descriptions[topic.name],
                topic.partitions,
                ends.get(topic.name, {}),
                rates.get(topic.name, {}),
                sizes.get(topic.name, {}),
            )
            for topic in metadata.topics
            if topic.name in descriptions
        }
        if before is not None:
            topics = {
                name: replace(topic, byte_rates=byte_rates(before.topics[name], topic, at - before.at))
                if name in before.topics
                else topic
                for name, topic in topics.items()
            }
        return Picture(
            at, versions, caller, metadata, brokers, topics, lags, len(groups), reports, silent=silent
        )

    async def _topic_descriptions(
        self, metadata: Metadata, *, described: bool
    ) -> Mapping[str, TopicDescription]:
        kept = self._descriptions
        is_same = len(kept) == len(metadata.topics) and all(
            (found := kept.get(topic.name)) is not None
            and found.topic_id == topic.topic_id
            and found.partitions == len(topic.partitions)
            for topic in metadata.topics
        )
        now = clock.monotonic()
        if described or not is_same or now - self._described_at > DESCRIPTIONS_SECONDS:
            # All settings of 10,000 topics would take a hundred megabytes.
            listed = await self._admin.list_topics(settings=LISTED_SETTINGS)
            self._descriptions = {each.name: each for each in listed}
            self._described_at = now
        return self._descriptions

    def _rates(
        self, ends: Mapping[str, Mapping[int, LogEnds]], at: float
    ) -> Mapping[str, Mapping[int, float]]:
        """Return the records per second since the last round by topic and partition; idle partitions are left out."""
        if self._picture is None:
            return {}
        seconds = at - self._picture.at
        rates = {}
        for name, topic in self._picture.topics.items():
            before = {number: each.end for number, each in topic.ends.items()}
            now = {number: each.end for number, each in ends.get(name, {}).items()}
            if before != now:
                rates[name] = grown(before, now, seconds)
        return rates


async def _permitted(asked: Awaitable[list[T]]) -> list[T]:
    """Return the answer to a call; empty if the caller may not make the call."""
    try:
        return await asked
    except ForbiddenError:
        return []


def _by_replica(sizes: list[TopicSizes]) -> Mapping[str, Mapping[int, Mapping[int, int]]]:
    """Return the bytes of each log by topic, partition and broker."""
    return {
        topic.topic: {
            part.partition: {
                each.broker: each.size_bytes for each in part.replicas if each.size_bytes is not None
            }
            for part in topic.partitions
        }
        for topic in sizes
    }


async def _group_lags(
    admin: Admin, groups: Sequence[str], known: Mapping[str, LagAnswer]
) -> Mapping[str, LagAnswer]:
    """Return the lags of groups; `known` completes them if a coordinator becomes silent."""
    found: dict[str, LagAnswer] = {}
    slots = asyncio.Semaphore(CALLS_MAX)

    async def ask(group: str) -> None:
        """Query one lag; a group that was deleted or is changing its coordinator is left out of the round."""
        async with slots:
            with suppress(ClusterError):
                found[group] = await admin.group_lag(group)

    try:
        async with asyncio.TaskGroup() as tasks:
            for group in groups:
                tasks.create_task(ask(group))
    except* UnreachableError:
        # The next round names the silent broker, and asks no coordinator.
        found = {**known, **found}
    return found


async def _log_ends(
    admin: Admin, metadata: Metadata, silent: frozenset[int]
) -> tuple[dict[str, dict[int, LogEnds]], frozenset[int]]:
    """Return the offsets of partitions, and the silent brokers with those leaders that did not answer either.

    The offsets lack the partitions of silent leaders and of topics deleted after the metadata was read.
    """
    leaders = {
        TopicPartition(topic.name, each.partition): each.leader
        for topic in metadata.topics
        for each in topic.partitions
        if each.leader is not None and each.leader not in silent
    }
    while True:
        try:
            starts = await admin.offsets_for(dict.fromkeys(leaders, "earliest"))
            ends = await admin.offsets_for(dict.fromkeys(leaders, "latest"))
        except (TopicNotFoundError, TopicRecreatedError, PartitionNotFoundError) as gone:
            left = {place: each for place, each in leaders.items() if place.topic != gone.data.get("topic")}
            if len(left) == len(leaders):
                raise
        except UnreachableError as error:
            # A caller that may not read the reports of the brokers learns here that a leader is silent.
            found = {each.id for each in metadata.brokers if each.address in error.attempts}
            left = {place: each for place, each in leaders.items() if each not in found}
            if len(left) == len(leaders):
                raise
            silent |= found
        else:
            return _by_topic(starts, ends), silent
        leaders = left


def _by_topic(
    starts: Mapping[TopicPartition, OffsetAndTimestamp | None],
    ends: Mapping[TopicPartition, OffsetAndTimestamp | None],
) -> dict[str, dict[int, LogEnds]]:
    found: dict[str, dict[int, LogEnds]] = {}
    for place, end in ends.items():
        start = starts[place]
        if start is not None and end is not None:
            found.setdefault(place.topic, {})[place.partition] = LogEnds(start.offset, end.offset)
    return found
